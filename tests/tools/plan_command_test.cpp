#include "shell.h"

#include <tests/support/folders.h>
#include <tests/support/sanitized.h>

#include <trireme/base/text.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <regex>
#include <set>

namespace trireme::tools {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class PlanCommandTest : public RunFolder {
 protected:
  PlanCommandTest() {
    write_run("run.json",
              R"({"type": "gpt", "layers": 4, "hidden": 32, "heads": 2, "sequence_length": 16, "vocab_size": 50})");
    write_cluster(1e9);
  }
  void write_cluster(double memory, const std::string& more = "") {
    write_file_atomically(folder / "cluster.json",
                          concat(R"({"hosts": 2, "ranks_per_host": 2, "rank": {"memory_bytes": )", memory,
                                 R"(, "flops": 1e12, "achieved": 0.5, "memory_bandwidth": 1e11)", more, R"(},
      "links": {"inside_host": {"bandwidth": 1e10, "latency": 1e-6}, "between_hosts": {"bandwidth": 1e9, "latency": 1e-5}}})"));
  }
  Finished plan(const std::string& rest = "", const std::string& run = "run.json", int seconds = 30) const {
    return sh(concat(kTrireme, " plan ", path(run), " --cluster ", path("cluster.json"), ' ', rest), seconds);
  }
  static std::vector<json> rows(const std::string& output) {
    std::vector<json> out;
    for (const std::string& line : split(output, '\n')) {
      if (line.starts_with("{")) {
        out.push_back(json::parse(line));
      }
    }
    return out;
  }
};

TEST_F(PlanCommandTest, NeedsNoDataFiles) {
  const Finished tokens = plan(with(R"(data={"type": "tokens", "train": ["absent.bin"]})"));
  EXPECT_EQ(tokens.status, 0) << tokens.output;
  EXPECT_THAT(tokens.output, testing::Not(HasSubstr("absent")));
  write_cluster(1e9, R"(, "device": "host")");
  const Finished text = plan(with(R"(data={"type": "text", "train": ["absent.txt"], "tokenizer": "absent.tok"})"));
  EXPECT_EQ(text.status, 0) << text.output;
  EXPECT_THAT(text.output, testing::Not(HasSubstr("counted in memory"))); // the tokens are mapped
}

// Scripts rely on these names.
TEST_F(PlanCommandTest, RowsAsJson) {
  const Finished finished = plan("--json");
  EXPECT_EQ(finished.status, 0) << finished.output;
  int best = 0;
  double before = 0;
  for (const json& row : rows(finished.output)) {
    EXPECT_EQ(row.at("pipe").get<int>() * row.at("data").get<int>() * row.at("context").get<int>() *
                  row.at("tensor").get<int>(),
              4)
        << row;
    for (const char* key : {"zero_stage", "micro_batch", "schedule", "memory_bytes", "bubble", "step_ms",
                            "sequence_parallel", "recompute", "offload", "accumulation"}) {
      EXPECT_TRUE(row.contains(key)) << key;
    }
    EXPECT_TRUE(row.at("offload").is_null()) << "nothing is said of hosts";
    if (!row.at("refused").is_null()) {
      EXPECT_TRUE(row.at("step_ms").is_null()) << row;
      continue;
    }
    ++best;
    EXPECT_GE(row.at("step_ms").get<double>(), before) << "the fastest first";
    before = row.at("step_ms");
    EXPECT_NEAR(
        before,
        row.at("pipeline_ms").get<double>() + row.at("reduce_ms").get<double>() + row.at("optimizer_ms").get<double>(),
        1e-9 * before);
    EXPECT_EQ(row.at("data").get<int>() * row.at("micro_batch").get<int>() * row.at("accumulation").get<int>(), 12)
        << row;
    int64_t memory = 0;
    for (const auto& [category, bytes] : row.at("memory").items()) {
      memory += category == "baseline" || category == "data" ? 0 : bytes.get<int64_t>(); // a card's memory has neither
    }
    EXPECT_LE(memory, row.at("memory_bytes").get<int64_t>());
    EXPECT_FALSE(row.at("sent").empty());
  }
  EXPECT_EQ(best, 10);
}

// Rows of frozen models and of adapters have the memory that `trireme estimate` says of the same layouts.
TEST_F(PlanCommandTest, CountsWhatIsTrained) {
  write_cluster(1e9, R"(, "device": "host")");
  const auto fastest = [&](const std::string& what) { return rows(plan(what + " --json").output).at(0); };
  const double all = fastest("").at("step_ms");
  for (const char* const some : {R"(--set "training.freeze=[\"wte\", \"wpe\", \"h.[0-2].\", \"ln_f\"]")",
                                 R"(--set "training.lora={\"rank\": 2}")"}) {
    const Finished planned = plan(concat(some, " --json --best 50"));
    ASSERT_EQ(planned.status, 0) << planned.output;
    int compared = 0;
    for (const json& row : rows(planned.output)) {
      if (!row.at("refused").is_null() || row.at("schedule") != "1f1b" || row.at("recompute") != 0 || ++compared > 4) {
        continue;
      }
      std::string layout;
      for (const char* const axis : {"pipe", "data", "context", "tensor"}) {
        layout += concat(" --set parallel.", axis, '=', row.at(axis).get<int>());
      }
      layout += concat(" --set parallel.sequence_parallel=", row.at("sequence_parallel").get<bool>() ? "true" : "false",
                       " --set engine.zero_optimization.stage=", row.at("zero_stage").get<int>(),
                       " --set engine.train_micro_batch_size_per_gpu=", row.at("micro_batch").get<int>(),
                       " --set engine.gradient_accumulation_steps=", row.at("accumulation").get<int>());
      const Finished finished = sh(concat(kTrireme, " estimate ", path("run.json"), ' ', some, layout, " -n 4 --json"));
      ASSERT_EQ(finished.status, 0) << finished.output;
      const json estimated = json::parse(finished.output);
      EXPECT_LT(estimated.at("trained_parameters"), estimated.at("parameters"));
      bool is_one = false;
      for (const json& stage : estimated.at("by_stage")) {
        bool equal = true;
        for (const char* const category : {"parameters", "gradients", "optimizer_states", "masters", "activations"}) {
          equal &= stage.at("memory").at(category).at("bytes") == row.at("memory").at(category);
        }
        is_one |= equal;
      }
      EXPECT_TRUE(is_one) << row << estimated;
    }
    EXPECT_GE(compared, 3) << planned.output;
    EXPECT_LT(fastest(some).at("step_ms").get<double>(), all);
  }
}

// Where the cluster file describes hosts and disks, what does not fit in the cards is tried there; the sections can be
// written into the run's file.
TEST_F(PlanCommandTest, PlacesAsJson) {
  write_cluster(3e5);
  std::string text = read_file(folder / "cluster.json");
  text.insert(
      text.find("\"links\""),
      R"("host": {"memory_bytes": 4e9, "memory_bandwidth": 1e11, "link_bandwidth": 1e10}, "disk": {"bytes": 1e10, "read_bandwidth": 1e9, "write_bandwidth": 1e9}, )");
  write_file_atomically(folder / "cluster.json", text);
  const Finished finished = plan("--json --best 50");
  EXPECT_EQ(finished.status, 0) << finished.output;
  int moved = 0;
  for (const json& row : rows(finished.output)) {
    if (!row.at("refused").is_null()) {
      EXPECT_TRUE(row.contains("nearest")) << row;
      continue;
    }
    EXPECT_LE(row.at("memory_bytes").get<int64_t>(), 300'000) << row;
    if (row.at("offload").is_null()) {
      continue;
    }
    ++moved;
    const json& states = row.at("offload").at("offload_optimizer");
    const bool files = states.at("device") == "nvme";
    EXPECT_TRUE(files || states.at("device") == "cpu") << row;
    EXPECT_EQ(files, states.contains("pipeline_read")) << row;
    EXPECT_EQ(row.at(files ? "in_files" : "on_host").at("optimizer_states").get<int64_t>() > 0, true) << row;
    EXPECT_EQ(row.at("memory").at("optimizer_states"), 0) << row;
    EXPECT_GT(row.at("moved").at("to_host").get<int64_t>(), 0) << row;
    EXPECT_GE(row.at("host_bytes").get<int64_t>(), row.at("on_host").value("gradients", int64_t{0})) << row;
    // max_in_cpu keeps all parameters in memory, and they are built in files all the same.
    const bool builds_in_files =
        row.at("offload").contains("offload_param") && row.at("offload").at("offload_param").at("device") == "nvme";
    EXPECT_EQ(row.at("disk_bytes").get<int64_t>() > 0, files || builds_in_files) << row;
  }
  EXPECT_GT(moved, 0);
  const Finished table = plan("--best 2");
  for (const char* words : {"  offload\n", "on its host", "moved by a rank in a step", "to_host", "a host needs"}) {
    EXPECT_THAT(table.output, HasSubstr(words));
  }
}

// With "auto" each layout has a list, which a run takes as "choices".
TEST_F(PlanCommandTest, WhatIsChosenOfActivationsTrains) {
  write_file_atomically(
      folder / "cluster.json",
      R"({"hosts": 1, "ranks_per_host": 2, "rank": {"device": "host", "memory_bytes": 8e9, "flops": 1e11, "achieved": 0.5, "memory_bandwidth": 1e10},
    "links": {"inside_host": {"bandwidth": 1e9, "latency": 1e-6}}, "disk": {"bytes": 1e10, "read_bandwidth": 1e9, "write_bandwidth": 1e9}})");
  const auto ways = [](const json& activations) {
    return with("engine.activation_checkpointing=" + activations.dump());
  };
  const Finished finished =
      plan("--json --best 100" + ways({{"policy", "auto"}, {"memory_budget", "150kB"}, {"nvme_path", path("moved")}}));
  EXPECT_EQ(finished.status, 0) << finished.output;
  std::set<int> pipes;
  std::set<std::string> words;
  for (const json& row : rows(finished.output)) {
    if (!row.at("refused").is_null() || row.at("sequence_parallel") == true || row.at("context") != 1 ||
        !pipes.insert(row.at("pipe").get<int>() * 10 + row.at("tensor").get<int>()).second) {
      continue;
    }
    for (const json& word : row.at("choices")) {
      words.insert(std::regex_replace(word.get<std::string>(), std::regex(".*\\*"), ""));
    }
    std::string run = " --set training.steps=2 --set training.checkpoint_every=0 -n 2";
    for (const char* const axis : {"pipe", "data", "tensor"}) {
      run += concat(" --set parallel.", axis, '=', row.at(axis).dump());
    }
    run += concat(" --set engine.zero_optimization.stage=", row.at("zero_stage").dump(),
                  " --set engine.train_micro_batch_size_per_gpu=", row.at("micro_batch").dump());
    if (row.at("pipe") > 1) {
      run += concat(" --set parallel.schedule=", row.at("schedule").get<std::string>(),
                    " --set parallel.chunks=", row.at("chunks").dump());
    }
    const Finished trained = train(run + ways({{"choices", row.at("choices")}, {"nvme_path", path("moved")}}));
    EXPECT_EQ(trained.status, 0) << row << trained.output;
    EXPECT_THAT(trained.output, HasSubstr("step 2/2")) << row;
    std::filesystem::remove_all(folder / "out");
  }
  EXPECT_EQ(pipes.size(), 3U) << "by stages, by samples and by heads";
  EXPECT_GT(words.size(), 1U) << "else nothing was chosen";
  EXPECT_THAT(plan(ways({{"policy", "auto"}, {"memory_budget", "150kB"}})).output,
              testing::AllOf(HasSubstr("by part"), HasSubstr("\"choices\": [\"")));
}

// examples/plan: 13 billion parameters on one card.
TEST_F(PlanCommandTest, ThirteenBillionOnOneCard) {
  const std::string examples = test::source_dir() + "/examples/plan/";
  const Finished finished =
      sh(concat(kTrireme, " plan ", examples, "thirteen_billion.json --cluster ", examples, "v100.json --json"), 100);
  EXPECT_EQ(finished.status, 0) << finished.output;
  const json best = rows(finished.output).front();
  EXPECT_EQ(best.at("offload").at("offload_optimizer").at("device"), "cpu");
  EXPECT_LE(best.at("memory_bytes").get<int64_t>(), 32'000'000'000);
}

TEST_F(PlanCommandTest, ATable) {
  const Finished finished = plan("--best 3");
  EXPECT_EQ(finished.status, 0) << finished.output;
  for (const char* words :
       {"parameters, 12 samples of 16 tokens a step", "2 hosts x 2 ranks", "optimizer_states", "between_hosts",
        "looked at", "offload was not tried: the cluster file says nothing of hosts"}) {
    EXPECT_THAT(finished.output, HasSubstr(words));
  }
  EXPECT_THAT(finished.output, HasSubstr("heads 2 cannot be divided by tensor 4"));
}

TEST_F(PlanCommandTest, LambIsNotSplitAmongTensorRanks) {
  for (const json& row : rows(plan("--set engine.optimizer.type=Lamb --json --best 1000").output)) {
    EXPECT_TRUE(row.at("tensor") == 1 || !row.at("refused").is_null()) << row;
  }
  EXPECT_THAT(plan("--set engine.optimizer.type=OneBitLamb --set parallel.tensor=2").output,
              HasSubstr("LAMB with 2 tensor ranks: it needs the norm of each whole parameter"));
}

TEST_F(PlanCommandTest, ReplicasThatStepByThemselvesShareNothing) {
  int64_t possible = 0;
  for (const json& row : rows(plan("--set engine.parameter_averaging.every=1 --json --best 1000").output)) {
    if (row.at("refused").is_null()) {
      ++possible;
      EXPECT_TRUE(row.at("zero_stage") == 0 && row.at("context") == 1 && row.at("sequence_parallel") == false) << row;
    }
  }
  EXPECT_GT(possible, 0);
}

TEST_F(PlanCommandTest, NothingFits) {
  write_cluster(1e4);
  const Finished finished = plan();
  EXPECT_EQ(finished.status, 1) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("too much, most for"));
  EXPECT_THAT(finished.output, HasSubstr("no layout of 4 ranks fits this run"));
}

TEST_F(PlanCommandTest, BadInputIsNamed) {
  const auto refused = [](const Finished& finished, const std::string& words) {
    EXPECT_EQ(finished.status, 2) << finished.output;
    EXPECT_THAT(finished.output, HasSubstr(words));
  };
  refused(sh(kTrireme + " plan " + path("run.json")), "--cluster");
  refused(sh(kTrireme + " plan " + path("run.json") + " --cluster " + path("absent.json")), "absent.json");
  refused(plan("", "absent.json"), "absent.json");
  refused(plan("--best 0"), "--best");
  refused(plan("--ranks 3"), "--ranks requires --calibrate");
  refused(sh(concat(kTrireme, " plan ", path("run.json"), " --cluster ", path("run.json"))),
          "run.json:1:1: this is a run file, not the description of a cluster");
  refused(plan("--set model.layerz=3"), "layers");
  write_cluster(1e9, R"(, "speed": 3)");
  refused(plan(), "cluster.json:1:134: rank.speed: unknown key");
  write_cluster(-1);
  refused(plan(), "rank.memory_bytes: must be from 1 to 1e+18 bytes, found -1");
  write_file_atomically(folder / "cluster.json", "[1]");
  refused(plan(), "cluster.json:1:1");
}

TEST_F(PlanCommandTest, NotesOfTheRunFile) {
  const Finished finished = plan("--json --best 1 --set engine.vocabulary_size=100");
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("engine.vocabulary_size has no effect"));
  EXPECT_GT(rows(finished.output).size(), 1u) << finished.output;
}

TEST_F(PlanCommandTest, CalibrationLeavesTheRunFileAlone) {
  const std::string before = read_file(folder / "run.json");
  const Finished finished = sh(
      concat("cd ", folder.string(), " && ", kTrireme, " plan run.json --calibrate --cluster ", path("run.json")), 60);
  EXPECT_EQ(finished.status, 2) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("--calibrate would write the description of this machine over the run file "
                                         "run.json. Name another file with --cluster."));
  EXPECT_EQ(read_file(folder / "run.json"), before);
}

TEST_F(PlanCommandTest, HelpHasAnExample) {
  const Finished finished = sh(kTrireme + " plan --help");
  EXPECT_EQ(finished.status, 0);
  EXPECT_THAT(finished.output,
              HasSubstr("trireme plan examples/plan/trillion.json --cluster examples/plan/cluster.json"));
}

TEST_F(PlanCommandTest, TheExamplesArePlanned) {
  const std::string examples = test::source_dir() + "/examples/plan/";
  for (const char* cluster : {"cluster.json", "selene.json"}) {
    const Finished finished = sh(
        concat(kTrireme, " plan ", examples, "trillion.json --cluster ", examples, cluster, " --json --best 2"), 100);
    EXPECT_EQ(finished.status, 0) << finished.output;
    const std::vector<json> all = rows(finished.output);
    ASSERT_GT(all.size(), 2u);
    EXPECT_LE(all[0].at("memory_bytes").get<int64_t>(), 80'000'000'000);
    const int split = all[0].at("tensor").get<int>() * all[0].at("pipe").get<int>() *
                      (all[0].at("zero_stage") == 3 ? all[0].at("data").get<int>() : 1);
    EXPECT_GT(split, 2.0 * 1.01e12 / 80e9)
        << "a trillion parameters in bf16 need so many cards that have parts of them";
  }
}

// What a page shows of a plan is what the command prints, lines that are left out apart.
TEST_F(PlanCommandTest, ThePagesShowThesePlans) {
  const auto timeless = [](const std::string& line) {
    return std::regex_replace(line, std::regex(R"((looked at \d+ layouts) in [^:]*)"), "$1");
  };
  int shown = 0;
  for (const char* page : {"plan.md", "offload.md"}) {
    std::string command;
    std::set<std::string> printed;
    bool inside = false;
    for (const std::string& line : split(read_file(concat(test::source_dir() + "/docs/", page)), '\n')) {
      if (line.starts_with("```")) {
        inside = !inside;
        printed.clear();
        if (inside && !command.empty()) {
          const Finished finished = sh(concat("cd " + test::source_dir() + " && ", kTrireme, ' ', command), 100);
          EXPECT_EQ(finished.status, 0) << finished.output;
          for (const std::string& one : split(finished.output, '\n')) {
            printed.insert(timeless(one));
          }
        }
        command.clear();
      } else if (inside && !printed.empty()) {
        ++shown;
        EXPECT_EQ(printed.count(timeless(line)), 1u) << page << ": " << line;
      } else if (std::smatch found;
                 !inside && std::regex_search(line, found, std::regex("`trireme (plan examples/[^`]*)`"))) {
        command = found[1];
      }
    }
  }
  EXPECT_GT(shown, 30);
}

// Measures the machine with a block of the model (tests/models/lone_block_test.cpp has those of GPTs), and what it
// wrote is a description to plan with.
TEST_F(PlanCommandTest, CalibrationWritesADescription) {
  write_run(
      "llama.json",
      R"({"type": "llama", "layers": 4, "hidden": 32, "heads": 4, "kv_heads": 2, "intermediate": 48, "sequence_length": 16, "vocab_size": 50})");
  const Finished measured = plan("--calibrate -n 2 --json", "llama.json", 200);
  EXPECT_EQ(measured.status, 0) << measured.output;
  constexpr int kParameters = 2 * 32 + 2 * 32 * (32 + 16) + 3 * 32 * 48;
  EXPECT_THAT(measured.output, HasSubstr(concat("measured a block of Llama with ", kParameters, " parameters")));
  const json written = json::parse(read_file(folder / "cluster.json"));
  EXPECT_EQ(written.at("name"), "localhost");
  EXPECT_EQ(written.at("ranks_per_host"), 2);
  EXPECT_GT(written.at("rank").at("flops").get<double>(), 1e7);
  EXPECT_GT(written.at("rank").at("memory_bandwidth").get<double>(), 1e7);
  EXPECT_GT(written.at("links").at("inside_host").at("bandwidth").get<double>(), 1e6);
  EXPECT_THAT(written.at("all_reduce_gathers").get<double>(),
              AllOf(testing::Ge(0.5), testing::Le(2.0))); // below 2 where nothing disturbs it
  if (written.contains("disk")) {                         // not where files would be in memory
    EXPECT_GT(written.at("disk").at("read_bandwidth").get<double>(), 1e5);
    EXPECT_GT(written.at("disk").at("write_bandwidth").get<double>(), 1e5);
  }
  const Finished again = plan("--json", "llama.json");
  EXPECT_EQ(again.status, 0) << again.output;
  EXPECT_EQ(rows(again.output).front(), rows(measured.output).front()) << "the same layouts from the file";
}

} // namespace
} // namespace trireme::tools
