// What a run keeps of the folders it began with, and what an export replaces.
#include "shell.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class RemovedSourceTest : public RunFolder {
 protected:
  void write(const std::string& name, const std::string& model, const std::string& tokenizer,
             const std::string& more = "") const {
    write_file_atomically(folder / name, concat(R"({"model": )", model, R"(,
 "data": {"type": "text", "train": ["text.txt"], "tokenizer": ")",
                                                tokenizer, R"("},
 "training": {"steps": 2)",
                                                more, R"(}, "engine": {"train_batch_size": 2, "gradient_clipping": 1.0,
   "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}})"));
  }
  std::string run(const std::string& words) const {
    const Finished finished = sh(concat("cd ", folder.string(), " && OMP_NUM_THREADS=1 ", kTrireme, ' ', words));
    EXPECT_EQ(finished.status, 0) << words << '\n' << finished.output;
    return finished.output;
  }
  // A token for each letter.
  static nlohmann::ordered_json tokenizer_of(const std::string& letters) {
    nlohmann::ordered_json vocabulary;
    for (size_t i = 0; i < letters.size(); ++i) {
      vocabulary[letters.substr(i, 1)] = i;
    }
    return {{"added_tokens", nlohmann::ordered_json::array()},
            {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::ordered_json::array()}}}};
  }
  // A model with more tokens than the tokenizer, as published ones have: it must not write those.
  std::string text_of(const std::string& from) const {
    auto row = nlohmann::json::parse(run(concat("generate ", from, " --prompt \"the \" --tokens 20 --json")));
    row.erase("tokens_per_s");
    row.erase("prompt_tokens_per_s");
    return row.dump();
  }
};

// A run keeps what it needs of the folder that it began with, and of a tokenizer under any name.
TEST_F(RemovedSourceTest, TheRunGeneratesAndExports) {
  const std::string letters = "abcdefghijklmnopqrstuvwxyz .";
  const nlohmann::ordered_json letters_alone = tokenizer_of(letters);
  write_file_atomically(folder / "letters.json", letters_alone.dump());
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += "the quick brown fox jumps over the lazy dog. ";
  }
  write_file_atomically(folder / "text.txt", text);

  write("first.json",
        R"({"type": "llama", "layers": 1, "hidden": 16, "heads": 2, "kv_heads": 1, "intermediate": 24,
            "sequence_length": 8, "vocab_size": 40})",
        "letters.json", R"(, "export": "source")");
  run("train first.json --out first");
  write("second.json", R"({"from": "source", "sequence_length": 8})", "source");
  run("train second.json --out second");

  const std::string by_first = text_of("first"), by_second = text_of("second");
  run("export second before");
  write_file_atomically(folder / "letters.json", tokenizer_of({letters.rbegin(), letters.rend()}).dump());
  EXPECT_EQ(text_of("first"), by_first) << "tokens are those that it was trained with";
  fs::remove(folder / "letters.json");

  fs::copy(folder / "second", folder / "third", fs::copy_options::recursive);
  fs::remove(folder / "source/model.safetensors"); // the checkpoint has weights
  EXPECT_THAT(run("train second.json --out third --resume --set training.steps=3"), HasSubstr("step 3/3"));
  fs::remove_all(folder / "source");
  fs::rename(folder / "text.txt", folder / "elsewhere.txt");
  EXPECT_EQ(text_of("first"), by_first);
  EXPECT_EQ(text_of("second"), by_second);
  run("export second after");
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"}) {
    EXPECT_TRUE(read_file(folder / "before" / file) == read_file(folder / "after" / file)) << file;
  }
  EXPECT_EQ(read_file(folder / "after/tokenizer.json"), letters_alone.dump());
  // The resolved run file continues it.
  fs::rename(folder / "elsewhere.txt", folder / "text.txt");
  EXPECT_THAT(run("train second/run.json --out second --resume --set training.steps=3 --set model.init_from=null "
                  "--set data.tokenizer=second/model"),
              HasSubstr("step 3/3"));
}

TEST_F(RemovedSourceTest, APairOfTokenizerFilesIsKept) {
  const std::string letters = "abcdefghijklmnopqrstuvwxyz.";
  nlohmann::ordered_json vocabulary{{"\u0120", 0}}; // a space
  for (size_t i = 0; i < letters.size(); ++i) {
    vocabulary[letters.substr(i, 1)] = i + 1;
  }
  write_file_atomically(folder / "v.json", vocabulary.dump());
  write_file_atomically(folder / "m.txt", "#version: 0.2\n");
  write_file_atomically(folder / "text.txt", std::string(200, 'a') + " quick brown fox.");
  write("pair.json", R"({"type": "gpt", "layers": 1, "hidden": 16, "heads": 2, "sequence_length": 8})", "v.json,m.txt");
  run("train pair.json --out pair");
  const std::string before = text_of("pair");
  fs::remove(folder / "v.json");
  EXPECT_EQ(text_of("pair"), before);
}

class ExportFolderTest : public RemovedSourceTest {
 protected:
  ExportFolderTest() {
    write_file_atomically(folder / "text.txt", std::string(300, 'a') + std::string(300, 'b'));
    write("llama.json", R"({"type": "llama", "layers": 1, "hidden": 16, "heads": 2, "intermediate": 24,
                            "sequence_length": 8})",
          "bytes", R"(, "checkpoint_every": 1)");
    write("gpt.json", R"({"type": "gpt", "layers": 1, "hidden": 16, "heads": 2, "sequence_length": 8})", "bytes");
  }
  Finished train(const std::string& words) const {
    return sh(concat("cd ", folder.string(), " && OMP_NUM_THREADS=1 ", kTrireme, " train ", words));
  }
};

// Before anything is trained.
TEST_F(ExportFolderTest, WhatIsNoExportIsNotReplaced) {
  write_file_atomically(folder / "file", "mine");
  fs::create_directories(folder / "other");
  write_file_atomically(folder / "other/config.json", R"({"model_type": "bert"})");
  fs::create_symlink("nowhere/x", folder / "link");
  run("train llama.json --out source --set training.export=exported");
  const std::string weights = read_file(folder / "exported/model.safetensors");
  for (const auto& [target, what] : {std::pair("file", "is a file"),
                                     {"other", "is not empty, and no earlier export"},
                                     {"link", "is a link to nothing"},
                                     {"exported", "is the folder that the model began with"}}) {
    const Finished refused = train(concat(
        "llama.json --out refused --set model.init_from=exported/model.safetensors --set training.export=", target));
    EXPECT_EQ(refused.status, 2) << refused.output;
    EXPECT_THAT(refused.output, HasSubstr(what));
    EXPECT_FALSE(fs::exists(folder / "refused/metrics.jsonl")) << target;
  }
  EXPECT_EQ(read_file(folder / "file"), "mine");
  EXPECT_EQ(read_file(folder / "other/config.json"), R"({"model_type": "bert"})");
  EXPECT_TRUE(read_file(folder / "exported/model.safetensors") == weights);
}

TEST_F(ExportFolderTest, APlaceThatCannotHoldOneIsRefusedFirst) {
  for (const auto& [place, why] : std::map<std::string, std::string>{
           {"/proc", "/proc is where a file system is mounted, and cannot be replaced. Name a folder in it."},
           {"text.txt/deep/out", "text.txt is not a folder"},
           {"run/model", "a folder of the run itself"},
           {"run", "a folder of the run itself"}}) {
    const Finished refused = train(concat("llama.json --out run --set training.export=", place));
    EXPECT_EQ(refused.status, 2) << refused.output;
    EXPECT_THAT(refused.output, HasSubstr(why));
    EXPECT_FALSE(fs::exists(folder / "run/checkpoints")) << place;
  }
}

TEST_F(ExportFolderTest, OnlyWhatNoProcessHoldsIsCleared) {
  run("train llama.json --out run");
  fs::create_directory(folder / ".out.tmp.1");
  fs::create_directory(folder / ".out.tmp.2");
  fs::create_directory(folder / ".out.tmp.mine");
  const int held = ::open((folder / ".out.tmp.2").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  run("export run out");
  EXPECT_FALSE(fs::exists(folder / ".out.tmp.1")) << "left by a process that was killed";
  EXPECT_TRUE(fs::exists(folder / ".out.tmp.2")) << "another process writes it, perhaps in another container";
  EXPECT_TRUE(fs::exists(folder / ".out.tmp.mine")) << "no export has such a name";
  ::close(held);
}

// With all that was in it: neither its values' type nor its other files say anything about this model.
TEST_F(ExportFolderTest, AnEarlierExportIsReplaced) {
  run("train llama.json --out llama");
  run("train gpt.json --out gpt");
  fs::create_directories(folder / "llama/model");
  write_file_atomically(folder / "llama/model/tokenizer.json", "{}");
  run("export llama target --dtype bf16");
  EXPECT_TRUE(fs::exists(folder / "target/tokenizer.json"));
  fs::create_directory_symlink("target", folder / "link");
  EXPECT_THAT(run("export gpt link"), HasSubstr("in place of the export of step 2"));
  const auto config = nlohmann::json::parse(read_file(folder / "target/config.json"));
  EXPECT_EQ(config.at("model_type"), "gpt2");
  EXPECT_EQ(config.at("torch_dtype"), "float32");
  EXPECT_FALSE(config.contains("rope_theta"));
  EXPECT_FALSE(fs::exists(folder / "target/tokenizer.json"));
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  for (const auto& item : fs::directory_iterator(folder)) {
    EXPECT_EQ(item.path().filename().string().find(".tmp"), std::string::npos) << item.path();
  }
}

TEST_F(ExportFolderTest, ACheckpointByAnyPathHasTheFilesOfItsRun) {
  run("train llama.json --out llama");
  fs::create_directories(folder / "llama/model");
  write_file_atomically(folder / "llama/model/tokenizer.json", "{}");
  for (const char* path : {"llama/checkpoints/global_step2/", "llama/checkpoints/../checkpoints/global_step2/."}) {
    run(concat("export ", path, " target"));
    EXPECT_TRUE(fs::exists(folder / "target/tokenizer.json")) << path;
    fs::remove_all(folder / "target");
  }
  const Finished inside =
      sh(concat("cd ", folder.string(), "/llama/checkpoints && ", kTrireme, " export global_step2 ../../target"));
  ASSERT_EQ(inside.status, 0) << inside.output;
  EXPECT_TRUE(fs::exists(folder / "target/tokenizer.json"));
  for (const auto& item : fs::directory_iterator(folder / "target")) {
    EXPECT_EQ(item.status().permissions(), fs::perms{0644}) << item.path();
  }
}

// What comes to the place while the export is written is somebody's work.
TEST_F(ExportFolderTest, WhatCameMeanwhileStays) {
  run("train llama.json --out llama");
  constexpr int kTries = 20; // the export may be done before this process looks
  for (int i = 0; i < kTries; ++i) {
    fs::remove_all(folder / "target");
    fs::create_directories(folder / "others");
    write_file_atomically(folder / "others/mine", "mine");
    bool came = false;
    std::thread other([&] {
      const auto begun = [&] {
        std::error_code ignored;
        return std::ranges::any_of(fs::directory_iterator(folder, ignored), [](const auto& item) {
          return item.path().filename().string().starts_with(".target.tmp.");
        });
      };
      for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
           !begun() && std::chrono::steady_clock::now() < end;) {
      }
      std::error_code failed; // it fails where the export is already
      fs::rename(folder / "others", folder / "target", failed);
      came = !failed;
    });
    const Finished late = sh(concat("cd ", folder.string(), " && ", kTrireme, " export llama target"));
    other.join();
    if (!came) {
      continue;
    }
    EXPECT_EQ(late.status, 2) << late.output;
    EXPECT_THAT(late.output, HasSubstr("target is not empty, and no earlier export"));
    EXPECT_EQ(read_file(folder / "target/mine"), "mine");
    return;
  }
  FAIL() << "no export was slow enough";
}

// Notes beside the weights, or weights that Python has trained on, are somebody's work.
TEST_F(ExportFolderTest, AnExportThatHasChangedIsNotReplaced) {
  run("train llama.json --out llama --set training.export=target");
  const auto refused = [&](const std::string& file) {
    const Finished again = sh(concat("cd ", folder.string(), " && ", kTrireme, " export llama target"));
    EXPECT_EQ(again.status, 2) << again.output;
    EXPECT_THAT(again.output, HasSubstr(concat("target was exported at step 2, and ", file, " is not as it was")));
  };
  write_file_atomically(folder / "target/RESULTS.md", "my evaluation");
  refused("RESULTS.md");
  fs::remove(folder / "target/RESULTS.md");
  run("export llama target");
  const std::string weights = read_file(folder / "target/model.safetensors");
  write_file_atomically(folder / "target/model.safetensors", weights);
  refused("model.safetensors");
  fs::remove(folder / "target/model.safetensors");
  refused("model.safetensors");
  // save_pretrained() of transformers carries every key of config.json along.
  EXPECT_EQ(read_file(folder / "target/config.json").find("trireme"), std::string::npos);
}

TEST_F(ExportFolderTest, ANewRunForgetsWhatAnEarlierOneKept) {
  run("train llama.json --out source --set training.export=exported");
  write("tuned.json", R"({"from": "exported"})", "bytes");
  run("train tuned.json --out tuned");
  EXPECT_TRUE(fs::exists(folder / "tuned/model/config.json"));
  fs::remove_all(folder / "tuned/checkpoints");
  run("train gpt.json --out tuned");
  EXPECT_FALSE(fs::exists(folder / "tuned/model/config.json"));
}

// A run that was killed before its first checkpoint, whose source has gone, is told to use its own copy.
TEST_F(ExportFolderTest, ANewRunMayReadWhatAnEarlierOneKept) {
  write_file_atomically(folder / "v.json", R"({"a": 0, "b": 1})");
  write_file_atomically(folder / "m.txt", "#version: 0.2\n");
  write("pair.json", R"({"type": "gpt", "layers": 1, "hidden": 16, "heads": 2, "sequence_length": 8})", "v.json,m.txt");
  run("train pair.json --out pair");
  fs::remove_all(folder / "pair/checkpoints");
  run("train pair.json --out pair --resume --set data.tokenizer=pair/model");
  EXPECT_EQ(read_file(folder / "pair/model/vocab.json"), R"({"a": 0, "b": 1})");
}

TEST_F(ExportFolderTest, AResumedRunRefusesAnotherTokenizerOrConfig) {
  run("train llama.json --out source --set training.export=exported");
  write("tuned.json", R"({"from": "exported"})", "bytes", R"(, "checkpoint_every": 1)");
  run("train tuned.json --out tuned");
  const std::string kept = read_file(folder / "tuned/model/config.json");
  fs::permissions(folder / "exported/config.json", fs::perms::owner_read);
  run("train tuned.json --out tuned --resume --set training.steps=3");
  auto config = nlohmann::ordered_json::parse(read_file(folder / "exported/config.json"));
  config["rms_norm_eps"] = 1e-3;
  write_file_atomically(folder / "exported/config.json", config.dump());
  const Finished refused = train("tuned.json --out tuned --resume --set training.steps=4");
  EXPECT_EQ(refused.status, 2) << refused.output;
  EXPECT_THAT(refused.output, AllOf(HasSubstr("exported/config.json has changed since this run began"),
                                    HasSubstr("tuned/model/config.json")));
  EXPECT_EQ(read_file(folder / "tuned/model/config.json"), kept);
}

// Names are numbered in their order: one more name would give the others new numbers.
TEST_F(ExportFolderTest, NamesOfLabelsStayAsTheyAre) {
  std::string lines;
  for (int i = 0; i < 8; ++i) {
    lines += concat(R"({"text": "aab)", i, R"(", "label": ")", i % 2 == 0 ? "bad" : "good", "\"}\n");
  }
  write_file_atomically(folder / "lines.jsonl", lines);
  write_file_atomically(folder / "class.json", R"({
 "model": {"type": "bert", "layers": 1, "hidden": 16, "heads": 2, "sequence_length": 8, "head": "classes", "classes": 3},
 "data": {"type": "labelled_text", "train": "lines.jsonl"},
 "training": {"steps": 2}, "engine": {"train_batch_size": 4, "optimizer": {"type": "AdamW"}}})");
  run("train class.json --out class");
  run("export class exported");
  const auto config = nlohmann::json::parse(read_file(folder / "exported/config.json"));
  EXPECT_EQ(config.at("id2label"), nlohmann::json({{"0", "bad"}, {"1", "good"}, {"2", "LABEL_2"}}));
  EXPECT_EQ(config.at("label2id").at("good"), 1);
  write_file_atomically(folder / "lines.jsonl",
                        concat(R"({"text": "x", "label": "average"})", lines.substr(lines.find('\n'))));
  const Finished refused = train("class.json --out class --resume --set training.steps=3");
  EXPECT_EQ(refused.status, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("the labels are others than those this run began with"));
}

} // namespace
} // namespace trireme::tools
