// A program of ten lines trains its own models and data as `trireme train` does.
#include <tests/support/folders.h>
#include <tests/support/page_blocks.h>
#include <tests/support/page_code.h>
#include <tests/tools/shell.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <regex>
#include <string>
#include <vector>

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using tools::Finished;
using tools::sh;

const std::string kProgram = "\"" + test::binary_dir() + "/bin/own_model\"";

class OwnModelTest : public testing::Test {
 protected:
  OwnModelTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_own_model_", ::getpid())) {
    fs::create_directories(folder_);
    write("run.json", R"({"type": "mlp", "width": 8})", R"({"type": "spirals", "samples": 96})");
    write("deep.json", R"({"type": "deep_mlp", "width": 8, "depth": 2})", R"({"type": "spirals", "samples": 96})");
    write("loader.json", R"({"type": "mlp", "width": 8})", R"({"type": "spirals_by_torch", "samples": 100})");
  }
  ~OwnModelTest() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& model, const std::string& data) const {
    write_file_atomically(folder_ / name, concat("{\"model\": ", model, ",\n \"data\": ", data, R"(,
 "training": {"steps": 20, "checkpoint_every": 5, "keep_checkpoints": 0},
 "engine": {"train_batch_size": 12, "optimizer": {"type": "AdamW", "params": {"lr": 0.02}}}})"));
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  Finished train(const std::string& file, const std::string& out, const std::string& rest = "",
                 const std::string& variables = "") const {
    // One thread: those of a rank spin while others have the cores.
    return sh(
        concat("OMP_NUM_THREADS=1 ", variables, ' ', kProgram, " train ", path(file), " --out ", path(out), ' ', rest),
        300);
  }
  std::vector<json> metrics(const std::string& out) const {
    std::vector<json> lines;
    for (const std::string& line : split(read_file(folder_ / out / "metrics.jsonl"), '\n')) {
      if (!line.empty()) {
        lines.push_back(json::parse(line));
      }
    }
    return lines;
  }
  void expect_near(const std::string& out, const std::string& other) const {
    const auto a = metrics(out), b = metrics(other);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_NEAR(a[i].at("loss").get<double>(), b[i].at("loss").get<double>(), 1e-5) << "step " << i + 1;
    }
  }
  // Tensors and positions; identities of saves and times differ.
  std::string weights(const std::string& out, int ranks, int step = 20) const {
    std::string all;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string file =
          read_file(folder_ / out / concat("checkpoints/global_step", step) / concat("rank0000", rank, ".safetensors"));
      uint64_t header = 0;
      std::memcpy(&header, file.data(), sizeof header);
      all += file.substr(8 + header);
    }
    EXPECT_GT(all.size(), 100u);
    return all;
  }

  const fs::path folder_;
};

TEST_F(OwnModelTest, TwoRanksTrainAsOneDoes) {
  const Finished one = train("run.json", "one", "--set training.eval_every=10");
  ASSERT_EQ(one.status, 0) << one.output;
  EXPECT_THAT(one.output, AllOf(HasSubstr("mlp, 42 parameters; torch::data: 96 samples"), HasSubstr("validation loss"),
                                HasSubstr("validation accuracy"), HasSubstr("report: ")));
  const Finished two = train("run.json", "two", "-n 2");
  ASSERT_EQ(two.status, 0) << two.output;
  EXPECT_THAT(two.output, HasSubstr("2 ranks, 2 data-parallel"));
  expect_near("one", "two");
  const auto steps = metrics("one");
  EXPECT_LT(steps.back().at("loss"), steps.front().at("loss"));
  EXPECT_TRUE(steps[9].contains("val_accuracy"));
  for (const char* file : {"report.html", "run.json", "launch.json", "checkpoints/latest"}) {
    EXPECT_TRUE(fs::exists(folder_ / "one" / file)) << file;
  }
}

TEST_F(OwnModelTest, AResumedRunRepeatsTheBits) {
  ASSERT_EQ(train("run.json", "whole", "-n 2").status, 0);
  ASSERT_EQ(train("run.json", "parts", "-n 2 --set training.steps=10").status, 0);
  const Finished resumed = train("run.json", "parts", "-n 2 --resume");
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_TRUE(weights("parts", 2) == weights("whole", 2));
}

TEST_F(OwnModelTest, AKilledRankIsStartedAgain) {
  ASSERT_EQ(train("run.json", "whole", "-n 2").status, 0);
  const Finished killed =
      train("run.json", "killed", "-n 2 --max-restarts 1", "TRIREME_FAULT=rank=1,step=13,phase=backward,kind=kill");
  ASSERT_EQ(killed.status, 0) << killed.output;
  EXPECT_THAT(killed.output, HasSubstr("global_step10 at step 10"));
  EXPECT_TRUE(weights("killed", 2) == weights("whole", 2));
  EXPECT_EQ(json::parse(read_file(folder_ / "killed/launch.json")).at("restarts").size(), 1u);
}

TEST_F(OwnModelTest, LayersTrainInAPipelineAsInOnePiece) {
  const std::string seeded = "--set engine.pipeline.seed_layers=true "; // the same initial values in every layout
  ASSERT_EQ(train("deep.json", "one", seeded).status, 0);
  const Finished two = train("deep.json", "two", seeded + "--set parallel.pipe=2");
  ASSERT_EQ(two.status, 0) << two.output;
  EXPECT_THAT(two.output, HasSubstr("2 pipeline stages"));
  expect_near("one", "two");
  const Finished recomputed =
      train("deep.json", "recomputed", seeded + "--set engine.pipeline.activation_checkpoint_interval=1");
  ASSERT_EQ(recomputed.status, 0) << recomputed.output;
  expect_near("one", "recomputed");
  // A checkpoint of two stages goes on in one piece: the names are the same.
  const Finished resumed = train("deep.json", "two", seeded + "--resume --set training.steps=25");
  EXPECT_EQ(resumed.status, 0) << resumed.output;
}

TEST_F(OwnModelTest, ALoaderOfTorchKeepsItsPlace) {
  ASSERT_EQ(train("loader.json", "whole", "-n 2").status, 0);
  ASSERT_EQ(train("loader.json", "parts", "-n 2 --set training.steps=10").status, 0); // 8 batches per epoch
  const Finished resumed = train("loader.json", "parts", "-n 2 --resume --set data.workers=2");
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_TRUE(weights("parts", 2) == weights("whole", 2));
  const Finished other = train("loader.json", "parts", "-n 1 --resume --set training.steps=30");
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.output, HasSubstr("is another one than before the checkpoint"));
}

TEST_F(OwnModelTest, WrongKeysAreNamedWithLineAndColumnBeforeRanksStart) {
  const auto refused = [&](const std::string& model, const std::string& data, const std::string& part) {
    write("wrong.json", model, data);
    const Finished run = train("wrong.json", "wrong", "-n 2");
    EXPECT_EQ(run.status, 2) << run.output;
    EXPECT_THAT(run.output, AllOf(HasSubstr(part), Not(HasSubstr("rank 1"))));
    EXPECT_FALSE(fs::exists(folder_ / "wrong"));
  };
  const std::string mlp = R"({"type": "mlp"})", spirals = R"({"type": "spirals"})";
  refused(R"({"type": "mlp", "width": 0})", spirals,
          "wrong.json:1:36: model.width: must be a whole number >= 1, found 0");
  refused(R"({"type": "mlp", "width": "wide"})", spirals, "wrong.json:1:36: model.width");
  refused(R"({"type": "mlp", "widht": 8})", spirals, "Did you mean \"width\"?");
  refused(mlp, R"({"type": "spirals", "turn": 2})", "wrong.json:2:");
  refused(R"({"type": "mpl"})", spirals, "Did you mean \"mlp\"?");
  refused(R"({"type": "resnet"})", spirals, "mlp, deep_mlp, gpt, llama, bert, cnn, alexnet");
  refused(mlp, R"({"type": "parquet"})", "spirals, spirals_by_torch, tokens, text, jsonl, labelled_text, images");
}

TEST_F(OwnModelTest, WhatATypeCannotDoIsRefused) {
  const Finished stages = train("run.json", "no", "--set parallel.pipe=2");
  EXPECT_EQ(stages.status, 2);
  EXPECT_THAT(stages.output, HasSubstr("a pipeline of 2 stages with the program's model type \"mlp\""));
  const Finished tensor = train("deep.json", "no", "--set parallel.tensor=2");
  EXPECT_EQ(tensor.status, 2);
  EXPECT_THAT(tensor.output, HasSubstr("does not say that tensor ranks can share its layers"));
  const Finished unread = train("loader.json", "no", "--set training.eval_every=5");
  EXPECT_EQ(unread.status, 2);
  EXPECT_THAT(unread.output, HasSubstr("makes no validation data"));
  // trireme itself does not know the type.
  const Finished trireme = sh(concat(tools::kTrireme, " train ", path("run.json")));
  EXPECT_EQ(trireme.status, 2);
  EXPECT_THAT(trireme.output, HasSubstr("run.json:1:20: model.type"));
}

TEST_F(OwnModelTest, EstimatesWhatATypeDescribes) {
  const Finished deep = sh(concat(kProgram, " estimate ", path("deep.json"), " -n 2 --json"));
  ASSERT_EQ(deep.status, 0) << deep.output;
  const json found = json::parse(deep.output);
  EXPECT_EQ(found.at("parameters"), (2 * 8 + 8) + (8 * 8 + 8) + (8 * 2 + 2));
  const Finished silent = sh(concat(kProgram, " estimate ", path("run.json")));
  EXPECT_EQ(silent.status, 2);
  EXPECT_THAT(silent.output, HasSubstr("says nothing of the layers of its model type \"mlp\""));
  const Finished plan = sh(concat(kProgram, " plan ", path("deep.json"), " --cluster ", path("none")));
  EXPECT_EQ(plan.status, 2) << plan.output;
}

TEST_F(OwnModelTest, TriremeSaysWhatItCannotDoWithTheRun) {
  ASSERT_EQ(train("run.json", "whole").status, 0);
  for (const char* command : {"generate ", "export "}) {
    const Finished refused =
        sh(concat(tools::kTrireme, ' ', command, path("whole"), command[0] == 'e' ? " " + path("exported") : ""));
    EXPECT_EQ(refused.status, 2);
    EXPECT_THAT(refused.output, HasSubstr("is a mlp, a model of a program")) << command;
  }
}

TEST_F(OwnModelTest, HelpNamesTheProgram) {
  const Finished help = sh(kProgram + " --help");
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.output, AllOf(HasSubstr("own_model"), HasSubstr("train"), HasSubstr("estimate")));
  const Finished of_train = sh(kProgram + " train --help");
  EXPECT_EQ(of_train.status, 0);
  EXPECT_THAT(of_train.output, AllOf(HasSubstr("own_model train"), HasSubstr("--max-restarts")));
  const Finished none = sh(kProgram + " trian");
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.output, HasSubstr("own_model --help"));
}

TEST_F(OwnModelTest, AModelOfTriremeTrainsOnOwnDataOnlyIfItFits) {
  write("cnn.json", R"({"type": "cnn", "side": 8, "width": 4})", R"({"type": "spirals"})");
  const Finished run = train("cnn.json", "cnn");
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output, HasSubstr("channels, height, width"));
}

TEST(OwnModelPageTest, ThePageShowsTheProgram) {
  EXPECT_GE(test::code_lines_of("docs/own_model.md", {"examples/own_model/main.cpp"}), 30);
}

// Speeds, times and last digits differ from run to run.
std::string without_figures(const std::string& line) {
  static const std::regex figure(R"([0-9]+(\.[0-9]+)?[kM]?( [um]?s\b)?)");
  const bool measured = line.starts_with("step ") || line.starts_with("validation loss") ||
                        line.starts_with("communication that nothing hid");
  return measured ? std::regex_replace(line, figure, "#") : line;
}

TEST_F(OwnModelTest, PrintsWhatThePageShows) {
  const std::vector<test::PageBlock> blocks = test::blocks_of("docs/own_model.md");
  const auto block_with = [&](const std::string& part) -> std::string {
    for (const test::PageBlock& block : blocks) {
      if (block.text.find(part) != std::string::npos) {
        return block.text;
      }
    }
    ADD_FAILURE() << "docs/own_model.md has no block with " << part;
    return "";
  };
  const std::string run = block_with("\"model\": {\"type\": \"mlp\"");
  EXPECT_EQ(json::parse(run), json::parse(read_file(fs::path(test::source_dir()) / "examples/own_model/run.json")));
  write_file_atomically(folder_ / "run.json", run);
  const auto in_folder = [&](const std::string& options) {
    return sh(concat("cd ", folder_.string(), " && OMP_NUM_THREADS=1 ", kProgram, " train run.json ", options), 300);
  };
  const Finished trained = in_folder("-n 2 --max-restarts 3 --out runs/own_model");
  ASSERT_EQ(trained.status, 0) << trained.output;
  std::vector<std::string> printed, shown;
  for (const std::string& line : split(trained.output, '\n')) {
    const bool between = line.starts_with("step ") && !line.starts_with("step   1/") && !line.starts_with("step 400/");
    const bool of_a_busy_machine = between || line.find("warning: rank") != std::string::npos;
    if (!of_a_busy_machine) {
      printed.push_back(without_figures(line));
    }
  }
  for (const std::string& line : split(block_with("162 parameters"), '\n')) {
    shown.push_back(without_figures(line));
  }
  EXPECT_EQ(printed, shown);
  const std::string width = "\"width\": 32";
  std::string wrong = run;
  wrong.replace(wrong.find(width), width.size(), "\"width\": 0");
  write_file_atomically(folder_ / "run.json", wrong);
  const std::string refusal = in_folder("").output;
  EXPECT_THAT(read_file(fs::path(test::source_dir()) / "docs/own_model.md"),
              HasSubstr(refusal.substr(0, refusal.find('\n'))));
}

} // namespace
} // namespace trireme::train
