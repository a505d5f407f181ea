// Folders that Hugging Face's transformers wrote, trained by `trireme train` with "model": {"from": FOLDER}: the losses
// and gradient norms of plain PyTorch, in every layout. What is exported opens in transformers as the model that
// PyTorch trained.
#include "shell.h"

#include <tests/support/folders.h>
#include <tests/support/made_once.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kSteps = 20;

struct Step {
  double loss = 0;
  double norm = 0;
};

class HuggingFaceFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder = test::made_once("models", [](const fs::path& made) {
      folder = made; // for Python's errors
      const Finished python_made = python(concat("make ", made.string(), ' ', kSteps));
      ASSERT_EQ(python_made.status, 0) << python_made.output;
      write_file_atomically(made / "curves", python_made.output);
    });
    std::istringstream lines(read_file(folder / "curves"));
    std::string name;
    const std::string of_frozen = "frozen/";
    for (Step step; lines >> name >> step.loss >> step.norm;) {
      const bool is_frozen = name.starts_with(of_frozen);
      (is_frozen ? frozen : expected)[is_frozen ? name.substr(of_frozen.size()) : name].push_back(step);
    }
  }
  static Finished python(const std::string& arguments) {
    return sh(
        concat("\"" + test::python() + "\" \"" + test::source_dir() + "/tests/tools/reference_folder.py\" ", arguments,
               " 2>", folder.string(), "/python.log || (cat ", folder.string(), "/python.log; exit 1)"),
        300);
  }
  static Finished train(const std::string& name, const std::string& more) {
    write_file_atomically(folder / (name + ".json"),
                          concat(R"({"model": {"from": ")", name, R"(", "sequence_length": 16},
      "data": {"type": "tokens", "train": [")",
                                 name, R"(.tokens"], "shuffle": false}, "training": {"steps": )", kSteps,
                                 R"(},
      "engine": {"train_batch_size": 8, "gradient_clipping": 1.0,
                 "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}}}})"));
    fs::remove_all(folder / "out");
    return sh(
        concat("cd ", folder.string(), " && OMP_NUM_THREADS=1 ", kTrireme, " train ", name, ".json --out out ", more));
  }
  // Empty where two ranks can share the model.
  static std::string refusal_of(const std::string& name, std::string_view layout) {
    const bool has_window = name.ends_with("_window") || name == "qwen3_biases";
    if (has_window && layout.ends_with("context=2")) {
      return "ring attention knows no window";
    }
    const bool splits_heads = layout.find("tensor=2") != std::string_view::npos;
    return name == "llama_odd" && splits_heads ? "the 3 heads of keys and values" : "";
  }
  static void expect_curve(const std::string& name) { expect_curve(expected[name]); }
  static void expect_curve(const std::vector<Step>& curve) {
    std::ifstream metrics(folder / "out/metrics.jsonl");
    std::string line;
    size_t i = 0;
    for (; std::getline(metrics, line); ++i) {
      ASSERT_LT(i, curve.size());
      const auto step = nlohmann::json::parse(line);
      EXPECT_NEAR(step.at("loss").get<double>(), curve[i].loss, 1e-4 * curve[i].loss) << "step " << i + 1;
      EXPECT_NEAR(step.at("grad_norm").get<double>(), curve[i].norm, 1e-3 * curve[i].norm) << "step " << i + 1;
    }
    EXPECT_EQ(i, kSteps);
  }

  // Logits of exported models are those of the models that PyTorch trained.
  static void expect_equal(const Finished& opened, size_t models) {
    ASSERT_EQ(opened.status, 0) << opened.output;
    std::istringstream lines(opened.output);
    std::string name;
    size_t count = 0;
    for (double difference = 0; lines >> name >> difference; ++count) {
      EXPECT_LT(difference, 1e-3) << name;
    }
    EXPECT_EQ(count, models);
  }

  static inline fs::path folder;
  static inline std::map<std::string, std::vector<Step>> expected;
  static inline std::map<std::string, std::vector<Step>> frozen; // FROZEN of the script
};

TEST_F(HuggingFaceFolderTest, EveryArchitectureTrainsAndComesBack) {
  ASSERT_GE(expected.size(), 13u);
  for (const auto& [name, steps] : expected) {
    SCOPED_TRACE(name);
    const Finished run = train(name, concat("-n 1 --set training.export=", name, "-exported"));
    ASSERT_EQ(run.status, 0) << run.output;
    expect_curve(name);
  }
  expect_equal(python(concat("open ", folder.string())), expected.size());
}

// One model, or with TRIREME_LONG_TESTS=1 all of them.
TEST_F(HuggingFaceFolderTest, EveryLayoutIsTheSameTraining) {
  for (const auto& [name, steps] : expected) {
    if (name != "llama_tied" && std::getenv("TRIREME_LONG_TESTS") == nullptr) {
      continue;
    }
    for (const char* layout :
         {"-n 2", "-n 2 --set engine.zero_optimization.stage=3",
          "-n 2 --set parallel.pipe=2 --set engine.gradient_accumulation_steps=4", "-n 2 --set parallel.tensor=2",
          "-n 2 --set parallel.context=2", "-n 2 --set parallel.context=2 --set parallel.context_kind=ulysses",
          "-n 4 --set parallel.tensor=2 --set parallel.sequence_parallel=true --set engine.zero_optimization.stage=2",
          "-n 1 --set engine.pipeline.activation_checkpoint_interval=1"}) {
      SCOPED_TRACE(concat(name, ' ', layout));
      const Finished run = train(name, layout);
      if (const std::string refusal = refusal_of(name, layout); !refusal.empty()) {
        EXPECT_EQ(run.status, 2);
        EXPECT_THAT(run.output, HasSubstr(refusal));
        continue;
      }
      ASSERT_EQ(run.status, 0) << run.output;
      expect_curve(name);
    }
  }
}

TEST_F(HuggingFaceFolderTest, FrozenParametersAreThoseOfPyTorch) {
  ASSERT_EQ(frozen.size(), 2u);
  for (const auto& [name, layout] :
       {std::pair("gpt2", "-n 1"),
        {"llama_tied",
         "-n 2 --set engine.zero_optimization.stage=3 "
         "--set engine.zero_optimization.stage3_param_persistence_threshold=0"},
        {"llama_tied", "-n 2 --set parallel.pipe=2 --set engine.gradient_accumulation_steps=4"}}) {
    SCOPED_TRACE(concat(name, ' ', layout));
    const bool is_gpt2 = std::string_view(name) == "gpt2";
    const Finished run = train(name, concat(layout, R"( --set "training.freeze=)",
                                            is_gpt2 ? R"(wpe|h\.0\.|h\.1\.mlp)" : R"(layers\.0\.|embed_tokens)", "\""));
    ASSERT_EQ(run.status, 0) << run.output;
    EXPECT_THAT(run.output, HasSubstr(" trained; "));
    expect_curve(frozen[name]);
  }
}

// From a pipeline, tensor ranks and ZeRO 3: no rank has the whole model.
TEST_F(HuggingFaceFolderTest, ARunIsExportedFromAnyLayout) {
  const std::string text = concat("cd ", folder.string(), " && ", kTrireme);
  std::string folders;
  for (const char* layout : {"-n 2 --set parallel.tensor=2", "-n 2 --set engine.zero_optimization.stage=3",
                             "-n 2 --set parallel.pipe=2 --set engine.gradient_accumulation_steps=4"}) {
    SCOPED_TRACE(layout);
    const Finished run = train("qwen3", layout);
    ASSERT_EQ(run.status, 0) << run.output;
    folders += concat(" again", folders.size());
    const Finished exported = sh(concat(text, " export out ", folders.substr(folders.rfind(' ')), " --json"));
    ASSERT_EQ(exported.status, 0) << exported.output;
    EXPECT_THAT(exported.output, AllOf(HasSubstr("\"step\":20"), HasSubstr("\"dtype\":\"fp32\"")));
  }
  expect_equal(python(concat("same ", folder.string(), " qwen3", folders)), 3);
  const Finished trained = sh(concat(
      "cd ", folder.string(), " && sed s/qwen3/again0/ qwen3.json > again0.json && cp qwen3.tokens again0.tokens && ",
      kTrireme, " train again0.json --out second --set training.steps=1"));
  ASSERT_EQ(trained.status, 0) << trained.output << "\nthe exported folder trains again";
}

// Greedily, three prompts of different lengths at a time.
TEST_F(HuggingFaceFolderTest, GeneratesWhatTransformersGenerates) {
  const Finished theirs = python(concat("generate ", folder.string()));
  ASSERT_EQ(theirs.status, 0) << theirs.output;
  std::map<std::string, std::vector<std::string>> ids;
  std::istringstream lines(theirs.output);
  for (std::string name, rest; lines >> name && std::getline(lines >> std::ws, rest);) {
    ids[name].push_back(rest);
  }
  EXPECT_EQ(ids.size(), expected.size());
  for (const auto& [name, texts] : ids) {
    SCOPED_TRACE(name);
    const Finished ours = sh(concat("cd ", folder.string(), " && OMP_NUM_THREADS=1 ", kTrireme, " generate ", name,
                                    "-trained --prompts prompts --max-tokens 10 --temperature 0 --json"));
    ASSERT_EQ(ours.status, 0) << ours.output;
    std::istringstream rows(ours.output);
    size_t i = 0;
    for (std::string row; std::getline(rows, row); ++i) {
      ASSERT_LT(i, texts.size());
      const auto text = nlohmann::json::parse(row);
      EXPECT_EQ(text.at("text").get<std::string>(), concat(' ', texts[i])) << "prompt " << i;
      EXPECT_EQ(text.at("ids").size(), 10u);
    }
    EXPECT_EQ(i, 3u);
  }
}

TEST_F(HuggingFaceFolderTest, BadFoldersAreRefusedInOneSentence) {
  const auto refused = [&](const std::string& name) {
    const Finished run = train(name, "-n 1 --set training.steps=1");
    EXPECT_EQ(run.status, 2) << run.output;
    return run.output;
  };
  const auto copy = [&](const char* name) {
    fs::remove_all(folder / name);
    fs::copy(folder / "llama_odd", folder / name);
    fs::copy_file(folder / "llama_odd.tokens", folder / concat(name, ".tokens"), fs::copy_options::overwrite_existing);
  };
  const auto set = [&](const char* name, const char* key, const nlohmann::ordered_json& value) {
    auto config = nlohmann::ordered_json::parse(read_file(folder / name / "config.json"));
    config[key] = value;
    write_file_atomically(folder / name / "config.json", config.dump(2));
  };
  copy("other");
  set("other", "model_type", "mamba");
  EXPECT_THAT(refused("other"), HasSubstr("model_type: the architecture \"mamba\" is not supported"));
  copy("narrow");
  set("narrow", "intermediate_size", 76);
  EXPECT_THAT(refused("narrow"), AllOf(HasSubstr("intermediate_size"), HasSubstr("mlp")));
  copy("short");
  set("short", "num_hidden_layers", 1);
  EXPECT_THAT(refused("short"), HasSubstr("num_hidden_layers"));
  copy("missing");
  for (const auto& file : fs::directory_iterator(folder / "missing")) {
    if (file.path().filename().string().find("-00002-of-") != std::string::npos) {
      fs::remove(file.path());
    }
  }
  EXPECT_THAT(refused("missing"), HasSubstr("-00002-of-"));
  const Finished full = sh(concat("cd ", folder.string(), " && ", kTrireme, " export out ."));
  EXPECT_EQ(full.status, 2) << full.output;
}

} // namespace
} // namespace trireme::tools
