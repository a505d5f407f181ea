// What is said of adapters that do not belong to a run, and of folders that have some.
#include "shell.h"

#include <gmock/gmock.h>

#include <cstring>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class AdapterErrorsTest : public RunFolder {
 protected:
  AdapterErrorsTest() {
    write_file_atomically(folder / "run.json", R"({
      "model": {"type": "llama", "layers": 1, "hidden": 32, "heads": 2, "sequence_length": 16, "vocab_size": 50},
      "data": {"type": "tokens", "train": ["tokens.bin"]}, "training": {"steps": 1},
      "engine": {"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}})");
    expect_done(in_folder("train run.json --out plain"));
    expect_done(in_folder("export plain base"));
    exported_ = in_folder(concat(kLora, " --set model.init_from=base --set training.export=adapter --out adapted"));
    expect_done(exported_);
  }
  static void expect_done(const Finished& finished) { EXPECT_EQ(finished.status, 0) << finished.output; }
  Finished in_folder(const std::string& words) const {
    return sh(concat("cd ", folder.string(), " && OMP_NUM_THREADS=1 ", kTrireme, ' ', words));
  }
  std::string refused(const std::string& words) const {
    const Finished finished = in_folder(words);
    EXPECT_EQ(finished.status, 2) << words << '\n' << finished.output;
    return finished.output;
  }
  // A run on init_from, which is refused.
  std::string refused_from(const std::string& path, const std::string& more = "") const {
    return refused(concat("train run.json --out other --set model.init_from=", path, ' ', more));
  }

  static constexpr const char* kLora = "train run.json --set training.lora.rank=2";
  Finished exported_;
};

TEST_F(AdapterErrorsTest, TheKeyThatDiffersIsNamed) {
  EXPECT_THAT(exported_.output, HasSubstr("PEFT folder: "));
  EXPECT_THAT(refused("train run.json --out adapted --resume --set training.steps=2"),
              AllOf(HasSubstr("has the adapter \"model.layers.0.self_attn.q_proj.lora_A.weight\""),
                    HasSubstr("Set training.lora to the checkpoint's"), HasSubstr("--merge")));
  EXPECT_THAT(refused(concat(kLora, " --out plain --resume --set training.steps=2")),
              AllOf(HasSubstr("does not have the adapter"), HasSubstr("Set training.lora to the checkpoint's")));

  const auto names_lora = AllOf(HasSubstr("the model has no adapter \"model.layers.0.self_attn."),
                                HasSubstr("Set training.lora to that of the checkpoint's run"),
                                HasSubstr("adapted/checkpoints/global_step1 FOLDER --merge"));
  EXPECT_THAT(refused_from("adapted"), names_lora);
  EXPECT_THAT(refused_from("adapted", "--set training.lora.targets=q_proj --set training.lora.rank=2"), names_lora);
  EXPECT_THAT(refused_from("adapted", "--set training.lora.rank=3"),
              AllOf(HasSubstr("has shape"), HasSubstr("Set training.lora to that of")));
  EXPECT_THAT(refused_from("adapted", "--set model.adapter=adapter"),
              AllOf(HasSubstr("has adapters, and so has model.adapter"), HasSubstr("Leave model.adapter out")));
}

TEST_F(AdapterErrorsTest, AFolderOfAdaptersIsNoModel) {
  const auto names_adapter = AllOf(HasSubstr("has adapters of PEFT, not "), HasSubstr("their folder as model.adapter"));
  EXPECT_THAT(refused_from("adapter"), names_adapter);
  write_file_atomically(folder / "from.json", R"({"model": {"from": "adapter", "sequence_length": 16},
    "data": {"type": "tokens", "train": ["tokens.bin"]}, "training": {"steps": 1}, "engine": {"train_batch_size": 4}})");
  EXPECT_THAT(refused("train from.json --out other"), AllOf(HasSubstr("from.json:1:"), names_adapter));

  fs::rename(folder / "adapter/adapter_model.safetensors", folder / "adapter/adapter_model.bin");
  EXPECT_THAT(refused_from("base", "--set model.adapter=adapter"),
              AllOf(HasSubstr("has adapter_model.bin, which is not read"), HasSubstr("safe_serialization=True")));
}

TEST_F(AdapterErrorsTest, ANamedBaseModelIsNeeded) {
  std::string config = read_file(folder / "adapter/adapter_config.json");
  const size_t begin = config.find("\"base_model_name_or_path\": ") + std::strlen("\"base_model_name_or_path\": ");
  config.replace(begin, config.find(',', begin) - begin, "null");
  write_file_atomically(folder / "adapter/adapter_config.json", config);
  EXPECT_THAT(refused("generate adapter --prompt 1"),
              AllOf(HasSubstr("adapter_config.json names no base model (base_model_name_or_path)"),
                    HasSubstr("with --adapter adapter")));
  EXPECT_THAT(refused("generate plain --prompt \"3 99\""),
              testing::StartsWith("error: [generate] the prompt has token 99"));
}

// The checkpoint has the values of both folders, and run.json their names and the layers that are adapted.
TEST_F(AdapterErrorsTest, AResumedRunNeedsNoFolderOfWeights) {
  const std::string more = "train run.json --set model.init_from=base --set model.adapter=adapter --out ";
  expect_done(in_folder(more + "again"));
  fs::rename(folder / "base", folder / "moved");
  fs::rename(folder / "adapter", folder / "moved-adapter");
  const std::string on = "train again/run.json --set training.steps=2 ";
  const Finished resumed = in_folder(on + "--out again --resume");
  expect_done(resumed);
  EXPECT_THAT(resumed.output, HasSubstr("at step 1"));
  EXPECT_THAT(refused(on + "--out new"), HasSubstr("there is no file"));
  EXPECT_THAT(refused(on + "--out new --resume"),
              AllOf(HasSubstr("base (model.init_from), with which this run begins"), HasSubstr("Put it back")));
  EXPECT_THAT(refused(on + "--out again --resume --set data.train=missing.bin"),
              AllOf(HasSubstr("data.train"), HasSubstr("missing.bin")));
  expect_done(in_folder("export again exported"));
  EXPECT_THAT(read_file(folder / "exported/adapter_config.json"), HasSubstr((folder / "base").string()));
}

TEST_F(AdapterErrorsTest, TheKeyThatMadeOtherSamplesIsNamed) {
  write_file_atomically(folder / "lines.jsonl",
                        R"({"prompt": "What is a trireme?", "response": "A ship with three rows."})"
                        "\n"
                        R"({"prompt": "And a bireme, then?", "response": "One with two."})");
  const std::string lines =
      "train run.json --set data.type=jsonl --set data.train=lines.jsonl --set data.tokenizer=bytes "
      "--set model.vocab_size=256 --set engine.train_batch_size=1 --out lines ";
  expect_done(in_folder(lines));
  const std::string on = lines + "--resume --set training.steps=2 --set ";
  EXPECT_THAT(refused(on + "data.loss_on=all"),
              AllOf(HasSubstr("data.loss_on is \"all\", and was \"response\""), HasSubstr("Set it back")));
  const Finished packed = in_folder(on + "data.pack=true"); // the same samples
  expect_done(packed);
  EXPECT_THAT(packed.output, HasSubstr("data.pack is true, and was false"));
}

} // namespace
} // namespace trireme::tools
