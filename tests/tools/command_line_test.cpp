#include "shell.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

namespace trireme::tools {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

TEST(CommandLineTest, HelpHasAnExampleForEveryCommand) {
  EXPECT_EQ(sh(kTrireme + " --help").status, 0);
  for (const char* command :
       {"train", "estimate", "launch", "generate", "inspect", "doctor", "schedule", "store", "data fetch", "tokenize",
        "bench optim", "bench comm", "bench kernels", "bench device", "bench tokenizer"}) {
    const Finished help = sh(concat(kTrireme, ' ', command, " --help"));
    EXPECT_EQ(help.status, 0) << command;
    const size_t example = help.output.find("Example:\n  ");
    ASSERT_NE(example, std::string::npos) << command;
    EXPECT_THAT(help.output.substr(example), HasSubstr(concat("trireme ", command))) << command;
  }
}

TEST(CommandLineTest, SlipsAreAnsweredWithWhatWasMeant) {
  const Finished slip = sh(kTrireme + " trian run.json");
  EXPECT_EQ(slip.status, 2);
  EXPECT_THAT(slip.output, HasSubstr("Did you mean \"train\"?"));
  for (const char* words : {"trian", "trian --help"}) {
    EXPECT_THAT(sh(concat(kTrireme, ' ', words)).output, HasSubstr("there is no command \"trian\"")) << words;
  }
  EXPECT_THAT(sh(kTrireme + " data tokenise e.txt").output,
              HasSubstr("\"trireme data\" has no command \"tokenise\". Did you mean \"tokenize\"?"));
  EXPECT_THAT(sh(kTrireme + " data tokenize e.txt").output, HasSubstr("Try: trireme data tokenize --help"));
  EXPECT_THAT(sh(kTrireme + " data").output, HasSubstr("Try: trireme data --help"));
  EXPECT_EQ(sh(kTrireme).status, 2);
  EXPECT_EQ(sh(kTrireme + " train").status, 2);
  EXPECT_EQ(sh(kTrireme + " train x.json -n 0").status, 2);
  EXPECT_EQ(sh(kTrireme + " launch -n 2").status, 2);
  EXPECT_EQ(sh(kTrireme + " launch -n 4294967297 -- true").status, 2);
  EXPECT_EQ(sh("TRIREME_LOG_ALL_RANKS=loud " + kTrireme + " trian run.json").status, 2);
  EXPECT_THAT(sh(kTrireme + " train absent.json -n 1 --out a -n 2 --out b").output,
              HasSubstr("absent.json does not exist"))
      << "the last one counts";
}

// The promise that launch and mistakes cost milliseconds: the program has no libtorch in it.
TEST(CommandLineTest, TheProgramPeopleTypeHasNoTorch) {
  const Finished libraries = sh("ldd " + kTrireme);
  EXPECT_EQ(libraries.status, 0);
  EXPECT_THAT(libraries.output, testing::Not(HasSubstr("torch")));
}

TEST(CommandLineTest, ThreadsThatWaitSleepSoonUnlessSomebodySaysHow) {
  const auto spin_count = [](const std::string& variables, const std::string& options = "") {
    return sh(concat("env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT ", variables, ' ', kTrireme, " launch ", options,
                     " -n 1 -- sh -c \"echo spin=\\$GOMP_SPINCOUNT.\""))
        .output;
  };
  EXPECT_THAT(spin_count(""), HasSubstr("spin=2000."));
  EXPECT_THAT(spin_count("GOMP_SPINCOUNT=7"), HasSubstr("spin=7."));
  EXPECT_THAT(spin_count("OMP_WAIT_POLICY=active"), HasSubstr("spin=."));
  EXPECT_THAT(spin_count("", "-x OMP_WAIT_POLICY=active"), HasSubstr("spin=."));
}

TEST(CommandLineTest, DoctorReports) {
  const Finished doctor = sh(kTrireme + " doctor --json");
  EXPECT_EQ(doctor.status, 0) << doctor.output;
  const auto json = nlohmann::json::parse(doctor.output);
  EXPECT_TRUE(json.at("good").get<bool>());
  EXPECT_TRUE(json.contains("backend gloo"));
  EXPECT_THAT(json.at("bf16").get<std::string>(), HasSubstr("faster than fp32: a small step takes "));
  EXPECT_TRUE(json.contains("gpu driver") && json.contains("nccl"));
  for (const char* op :
       {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send/recv", "barrier"}) {
    EXPECT_THAT(json.at(op).get<std::string>(), HasSubstr("as computed over shm (2 ranks), gloo (2 ranks)")) << op;
  }
}

TEST(CommandLineTest, DoctorNamesCollectivesThatAreWrongAndEndsWithoutThoseThatHang) {
  const Finished wrong = sh("TRIREME_FAULT=rank=1,step=1,phase=all_reduce,kind=nan " + kTrireme + " doctor");
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.output, HasSubstr(" BAD  all_reduce"));
  EXPECT_THAT(wrong.output, HasSubstr("shm (2 ranks): ranks 0, 1 got wrong numbers"));
  EXPECT_THAT(wrong.output, HasSubstr("  ok  broadcast"));
  const Finished hangs =
      sh("TRIREME_TIMEOUT=2 TRIREME_FAULT=rank=1,step=4,phase=all_reduce,kind=drop " + kTrireme + " doctor");
  EXPECT_EQ(hangs.status, 1);
  EXPECT_THAT(hangs.output, HasSubstr(" BAD  collectives"));
  EXPECT_THAT(hangs.output, HasSubstr("over gloo (2 ranks): "));
}

TEST(CommandLineTest, BenchOptimPrintsRows) {
  const Finished bench = sh(kTrireme + " bench optim --params 100000 --threads 1,2 --repeats 3 --json");
  EXPECT_EQ(bench.status, 0) << bench.output;
  const auto first = nlohmann::json::parse(bench.output.substr(0, bench.output.find('\n')));
  for (const char* key : {"impl", "params", "threads", "ms"}) {
    EXPECT_TRUE(first.contains(key)) << key;
  }
}

TEST(CommandLineTest, BenchCommPrintsRowsWithCountedAndComputedSteps) {
  const Finished bench = sh(kTrireme +
                            " bench comm --ranks 2,3 --bytes 4096,98304 --repeats 2 --algorithm "
                            "ring,tree,halving-doubling,naive,backend --json 2>/dev/null");
  EXPECT_EQ(bench.status, 0) << bench.output;
  std::map<std::string, int> rows;
  std::istringstream lines(bench.output);
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    ++rows[row.at("backend").get<std::string>()];
    EXPECT_GT(row.at("us").get<double>(), 0) << line;
    EXPECT_TRUE(row.contains("ranks") && row.contains("bytes") && row.contains("of_limit")) << line;
    if (row.contains("steps")) {
      EXPECT_EQ(row.at("steps"), row.at("steps_formula")) << line;
      EXPECT_NEAR(row.at("bytes_sent").get<double>(), row.at("bytes_formula").get<double>(), 64) << line;
    }
  }
  EXPECT_EQ(rows["shm"], 2 * 2 * 5);
  EXPECT_EQ(rows["gloo"], 2 * 2 * 5);
  EXPECT_EQ(rows["memcpy"], 2 * 2);
  EXPECT_EQ(sh(kTrireme + " bench comm --op broadcast --algorithm ring").status, 2);
  EXPECT_EQ(sh(kTrireme + " bench comm --algorithm rings").status, 2);
}

TEST(CommandLineTest, BenchKernelsPrintsRows) {
  const Finished bench =
      sh(kTrireme +
         " bench kernels --batch 1 --length 20 --hidden 32 --heads 2 --vocab 50 --repeats 1 --threads 1 --json");
  EXPECT_EQ(bench.status, 0) << bench.output;
  EXPECT_EQ(std::count(bench.output.begin(), bench.output.end(), '\n'), 2 * 5 * 2);
  const auto first = nlohmann::json::parse(bench.output.substr(0, bench.output.find('\n')));
  for (const char* key : {"op", "dtype", "fused_ms", "aten_ms"}) {
    EXPECT_TRUE(first.contains(key)) << key;
  }
  EXPECT_EQ(sh(kTrireme + " bench kernels --heads 5").status, 2);
}

TEST(CommandLineTest, BenchAttentionPrintsRows) {
  const Finished bench =
      sh(kTrireme + " bench attention --length 100 --block 16 --heads 2 --head-dim 8 --repeats 1 --json");
  ASSERT_EQ(bench.status, 0) << bench.output;
  std::istringstream lines(bench.output);
  std::vector<std::string> kinds;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    kinds.push_back(concat(row.at("impl").get<std::string>(), ' ', row.at("kind").get<std::string>()));
    EXPECT_GT(row.at("forward_ms").get<double>() + row.at("backward_ms").get<double>(), 0) << line;
    EXPECT_GE(row.at("peak_bytes").get<int64_t>(), 4 * 100 * 2 * 8 * 4) << line << ": the result and three gradients";
    EXPECT_NEAR(row.at("limit").get<double>() * row.at("density").get<double>(), 1, 1e-9) << line;
  }
  EXPECT_THAT(kinds, testing::ElementsAre("sdpa dense", "trireme dense", "trireme fixed", "trireme variable",
                                          "trireme bigbird", "trireme longformer", "trireme window"));
  EXPECT_THAT(sh(kTrireme + " bench attention --block 24").output, HasSubstr("a block has 16, 32, 64 or 128 tokens"));
}

TEST(CommandLineTest, LaunchStartsAnyProgram) {
  const Finished launched = sh(kTrireme + " launch -n 3 --all-output -- sh -c \"echo rank \\$RANK of \\$WORLD_SIZE\"");
  EXPECT_EQ(launched.status, 0) << launched.output;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(launched.output, HasSubstr(concat("rank ", rank, " of 3")));
  }
  EXPECT_EQ(sh(kTrireme + " launch -n 2 -- sh -c \"exit 7\"").status, 7);
}

class WholeRunTest : public RunFolder {};

TEST_F(WholeRunTest, TrainsEvaluatesSavesReportsAndGenerates) {
  const Finished run =
      train("-n 2 --set data.validation=[\\\"" + path("tokens.bin") + "\\\"] --set training.eval_every=10");
  ASSERT_EQ(run.status, 0) << run.output;
  for (const char* file : {"metrics.jsonl", "report.html", "run.json", "checkpoints/latest",
                           "checkpoints/global_step30/manifest.json", "logs/rank1.log"}) {
    EXPECT_TRUE(fs::exists(folder / "out" / file)) << file;
  }
  EXPECT_FALSE(fs::is_empty(folder / "out/tensorboard"));
  std::vector<nlohmann::json> steps;
  for (std::string text = read_file(folder / "out/metrics.jsonl"); !text.empty(); text.erase(0, text.find('\n') + 1)) {
    steps.push_back(nlohmann::json::parse(text.substr(0, text.find('\n'))));
  }
  ASSERT_EQ(steps.size(), 30u);
  EXPECT_LT(steps.back()["loss"].get<double>(), 0.8 * steps.front()["loss"].get<double>());
  EXPECT_TRUE(steps[9].contains("val_loss"));
  EXPECT_FALSE(steps[10].contains("val_loss"));
  for (const char* key : {"lr", "grad_norm", "tokens_per_s", "step_ms", "peak_rss_bytes", "comm_bytes"}) {
    EXPECT_TRUE(steps.back().contains(key)) << key;
  }
  EXPECT_GT(steps.back()["comm_bytes"].get<int64_t>(), 0);

  const Finished inspected = sh(kTrireme + " inspect --json " + path("out"));
  EXPECT_EQ(inspected.status, 0) << inspected.output;
  EXPECT_THAT(inspected.output, HasSubstr("transformer.h.1.mlp.c_fc.weight"));
  const Finished text =
      sh(kTrireme + " generate " + path("out") + " --prompt \"1 2 3\" --tokens 5 --temperature 0 --json");
  EXPECT_EQ(text.status, 0) << text.output;
  EXPECT_EQ(nlohmann::json::parse(text.output)["ids"].size(), 5u);
  fs::resize_file(path("out/checkpoints/global_step30/rank00000.safetensors"), 100);
  const Finished damaged = sh(kTrireme + " inspect " + path("out"));
  EXPECT_EQ(damaged.status, 1);
  EXPECT_THAT(damaged.output, HasSubstr("DAMAGED"));
}

TEST_F(WholeRunTest, ATraceOfAllRanksIsOneFile) {
  const Finished run = train("-n 2 --trace 3 --set training.steps=5");
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("trace.json (open it in ui.perfetto.dev)"));
  const auto trace = nlohmann::json::parse(read_file(folder / "out/trace.json"));
  const auto& events = trace.is_array() ? trace : trace.at("traceEvents");
  std::set<int> ranks;
  for (const auto& event : events) {
    ranks.insert(event.at("pid").get<int>());
  }
  EXPECT_EQ(ranks, (std::set<int>{0, 1}));
  for (const auto& entry : fs::directory_iterator(folder / "out")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("trace.rank")) << "a rank's part is left";
  }
}

TEST_F(WholeRunTest, TheReportOfARunThatWasKilledSaysHowFarItCame) {
  const Finished run =
      sh(concat("TRIREME_FAULT=rank=0,step=12,phase=step,kind=kill ", kTrireme,
                " train --set training.checkpoint_every=5 ", path("run.json"), " --out ", path("out")));
  EXPECT_EQ(run.status, 137) << run.output;
  EXPECT_THAT(read_file(path("out/report.html")),
              AnyOf(HasSubstr("failed, step 10"), HasSubstr("failed, step 5"))) // the save of 10 may not be over at 12
      << run.output;
}

TEST_F(WholeRunTest, InspectShowsAHangUntilTheRunHasSavedAgain) {
  ASSERT_EQ(sh(concat(kTrireme, " train ", path("run.json"), " --set training.steps=1 --out ", path("out"))).status, 0);
  const fs::path dump = path("out/hang-rank1.json");
  write_file_atomically(dump, "{}");
  const Finished hung = sh(concat(kTrireme, " inspect ", path("out")));
  EXPECT_EQ(hung.status, 2);
  EXPECT_THAT(hung.output, HasSubstr("hang-rank1.json"));
  fs::last_write_time(dump, fs::last_write_time(path("out/checkpoints/latest")) - std::chrono::seconds(1));
  const Finished saved = sh(concat(kTrireme, " inspect ", path("out")));
  EXPECT_EQ(saved.status, 0) << saved.output;
  EXPECT_THAT(saved.output,
              AllOf(HasSubstr("global_step1"),
                    HasSubstr("This run hung before it saved this checkpoint: trireme inspect " + dump.string())));
}

TEST_F(WholeRunTest, ACheckpointThatARunningJobRemovesIsNotDamaged) {
  const Finished run = sh(
      concat(kTrireme, " train ", path("run.json"),
             " -n 1 --set training.steps=80 --set training.checkpoint_every=1 --set training.keep_checkpoints=1 --out ",
             path("out"), R"( > /dev/null 2>&1 &
until [ -e )",
             path("out/checkpoints/latest"), R"( ]; do sleep 0.02; done
while kill -0 $! 2> /dev/null; do )",
             kTrireme, " inspect ", path("out"), R"( > )", path("found"), R"( || { cat )", path("found"),
             R"(; kill $!; exit 1; }; done)"));
  EXPECT_EQ(run.status, 0) << run.output;
}

TEST_F(WholeRunTest, AnEarlierRunIsNeverOverwrittenUnasked) {
  ASSERT_EQ(train("-n 1 --set training.steps=5").status, 0);
  const Finished again = train("-n 1");
  EXPECT_EQ(again.status, 2);
  EXPECT_THAT(again.output, HasSubstr("already holds a run"));
  const Finished resumed = train("-n 1 --resume");
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("at step 5"));
}

} // namespace
} // namespace trireme::tools
