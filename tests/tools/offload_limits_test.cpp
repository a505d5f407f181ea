// Disks and memory that are a little too small, and a little larger: what is said before the first step is what a run
// needs.
#include "run_folder_on_disk.h"

#include <tests/support/limited_group.h>
#include <tests/support/sanitized.h>
#include <tests/support/small_disk.h>

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kPage = 4096;

struct Files {
  std::string states = {}; // folders
  std::string parameters = {};
  std::string activations = {};
};

class OffloadLimitsTest : public RunFolderOnDisk {
 protected:
  std::string in_files(const Files& files, int stage) const {
    std::string words = concat(" --set engine.zero_optimization.stage=", stage,
                               " --set engine.zero_optimization.stage3_param_persistence_threshold=0");
    if (!files.states.empty()) {
      words += with(concat(
          R"(engine.zero_optimization.offload_optimizer={"device": "nvme", "pipeline_read": true, "pipeline_write": true, "fast_init": true, "nvme_path": ")",
          files.states, R"("})"));
    }
    if (!files.parameters.empty()) {
      words +=
          with(concat(R"(engine.zero_optimization.offload_param={"device": "nvme", "max_in_cpu": 0, "nvme_path": ")",
                      files.parameters, R"("})"));
    }
    if (!files.activations.empty()) {
      words += with(
          concat(R"(engine.activation_checkpointing={"policy": "nvme", "nvme_path": ")", files.activations, R"("})"));
    }
    return words;
  }
  json estimate(const std::string& rest, const std::string& environment = "") const {
    const Finished finished =
        sh(concat(environment, "OMP_NUM_THREADS=1 ", kTrireme, " estimate ", path("run.json"), " --json ", rest), 200);
    EXPECT_EQ(finished.status, 0) << finished.output;
    return finished.status == 0 ? json::parse(finished.output) : json();
  }
  // The peak of a rank as it is estimated, without libtorch, and as it is measured.
  std::pair<double, double> measured(const std::string& rest, const std::string& environment = "") const {
    const json all = estimate(rest + " --measure 3", environment);
    const json& one = all.at("by_stage").at(0);
    return {static_cast<double>(one.at("peak_bytes").get<int64_t>() -
                                one.at("memory").at("baseline").at("bytes").get<int64_t>()),
            all.at("measured").at("peak_rss_bytes").get<double>()};
  }

  /// With exactly the room that is estimated for all ranks, and a page less.
  void at_the_limit(const Files& files, int stage, int ranks, const std::string& rest, const std::string& nearest) {
    const std::string run = concat("-n ", ranks, " --set model.layers=4 --set model.hidden=128 --set training.steps=2",
                                   rest, in_files(files, stage));
    const int64_t need = ranks * estimate(run).at("by_stage").at(0).at("disk_bytes").get<int64_t>();
    ASSERT_GT(need, 1'000'000);
    const int64_t pages = (need + kPage - 1) / kPage;
    for (const bool enough : {false, true}) {
      const test::SmallDisk disk(folder / "disk", (enough ? pages : pages - 1) * kPage);
      if (!disk.exists()) {
        GTEST_SKIP() << "needs root to mount a small file system";
      }
      const json probed = estimate(run + " --probe");
      EXPECT_EQ(probed.dump().find("with all its ranks on this host this run is refused: ") == std::string::npos,
                enough)
          << probed.dump();
      std::filesystem::remove_all(folder / "out");
      const Finished finished = train(run);
      EXPECT_EQ(finished.status, enough ? 0 : 2) << finished.output;
      EXPECT_THAT(finished.output, enough ? HasSubstr("step 2/2") : HasSubstr(" too little"));
      if (!enough) {
        EXPECT_THAT(finished.output, HasSubstr(nearest));
        EXPECT_THAT(finished.output, Not(HasSubstr("step 1/2")));
      }
    }
  }
};

TEST_F(OffloadLimitsTest, StatesOnADiskOfTheirSize) {
  at_the_limit({path("disk/states")}, 1, 2, "", "Fits without files, with \"device\": \"cpu\"");
}

TEST_F(OffloadLimitsTest, ParametersOnADiskThatHoldsThemTwice) {
  at_the_limit({"", path("disk/parameters")}, 3, 2, "", "Fits without files, with \"device\": \"cpu\"");
}

TEST_F(OffloadLimitsTest, ParametersOfALayerList) {
  at_the_limit({"", path("disk/parameters")}, 3, 1, " --set engine.pipeline.activation_checkpoint_interval=1",
               "while the model is built, its parameters twice,");
}

TEST_F(OffloadLimitsTest, AllInOneFolder) {
  at_the_limit({path("disk/all"), path("disk/all")}, 3, 2, "", "Fits with \"offload_param\": {\"device\": \"cpu\"}");
}

TEST_F(OffloadLimitsTest, TwoFoldersOnOneDisk) {
  at_the_limit({path("disk/states"), path("disk/parameters")}, 3, 2, "", "of the other folder on that disk");
}

TEST_F(OffloadLimitsTest, Activations) {
  at_the_limit({"", "", path("disk")}, 1, 1, "", "Fits with \"activation_checkpointing\": {\"policy\": \"recompute\"}");
}

// 4 parts save 13 MB a rank in all, of which 0.5 MB are inputs: "auto" moves no more than there is room for.
TEST_F(OffloadLimitsTest, ChosenActivationsStayWithinTheDisk) {
  const test::SmallDisk disk(folder / "disk", 14'000'000);
  if (!disk.exists()) {
    GTEST_SKIP() << "needs root to mount a small file system";
  }
  const Finished run = train(
      "-n 2 --set model.layers=4 --set model.hidden=128 --set engine.train_batch_size=64 --set "
      "model.sequence_length=32 --set training.steps=4" +
      with(concat(R"(engine.activation_checkpointing={"policy": "auto", "memory_budget": "12MB", "nvme_path": ")",
                  path("disk"), R"("})")));
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("step 4/4"));
  EXPECT_THAT(run.output, HasSubstr("activation_checkpointing has chosen"));
}

/// Peaks of ranks with 25 million parameters, above what a tiny model needs, against the estimate.
TEST_F(OffloadLimitsTest, PeakMemoryIsWithinTenPercentOfTheEstimate) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer needs memory of its own";
  }
  for (const auto& [stage, files] : {std::pair(1, Files{path("files")}), std::pair(2, Files{path("files")}),
                                     std::pair(3, Files{path("files"), path("files")})}) {
    const std::string run = concat("-n 2 --set model.heads=8 --set engine.train_batch_size=2", in_files(files, stage));
    const auto [of_tiny, tiny] = measured(run + " --set model.layers=1 --set model.hidden=64");
    const auto [estimated, peak] = measured(run + " --set model.layers=8 --set model.hidden=512");
    const double above = peak - (tiny - of_tiny);
    std::printf("ZeRO %d%s: estimated %.1f MB, measured %.1f MB above %.1f MB\n", stage,
                files.parameters.empty() ? ", states in files" : ", all in files", estimated / 1e6, above / 1e6,
                (tiny - of_tiny) / 1e6);
    EXPECT_NEAR(estimated / above, 1, 0.1) << "stage " << stage;
  }
}

// What a run allocates, with a malloc that gives back at once what is freed.
TEST_F(OffloadLimitsTest, PeakMemoryWithActivationsInFilesIsThatOfTheEstimate) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer needs memory of its own";
  }
  std::filesystem::create_directories(path("activations"));
  const std::string run = "-n 1 --set model.heads=4 --set engine.train_batch_size=8 ";
  const std::string returns_all = "MALLOC_MMAP_THRESHOLD_=131072 ";
  const auto [of_tiny, tiny] = measured(run + "--set model.layers=1 --set model.hidden=64", returns_all);
  const std::string model = "--set model.layers=4 --set model.hidden=256 --set model.sequence_length=256";
  for (const std::string dropout : {"0", "0.1"}) {
    for (const std::string ways :
         {R"("policy": "nvme")", R"("choices": ["nvme", "3*keep"])", R"("choices": ["2*nvme", "recompute", "keep"])"}) {
      const auto [estimated, peak] = measured(concat(run, model, " --set model.dropout=", dropout,
                                                     with(concat("engine.activation_checkpointing={", ways,
                                                                 R"(, "nvme_path": ")", path("activations"), R"("})"))),
                                              returns_all);
      const double above = peak - (tiny - of_tiny);
      std::printf("dropout %s, %s: estimated %.1f MB, measured %.1f MB\n", dropout.c_str(), ways.c_str(),
                  estimated / 1e6, above / 1e6);
      EXPECT_NEAR(estimated / above, 1, 0.1) << ways;
    }
  }
}

TEST_F(OffloadLimitsTest, ARunTrainsWithinItsEstimateAndAMargin) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer needs memory of its own";
  }
  const std::string run =
      "-n 2 --set model.layers=8 --set model.hidden=512 --set model.heads=8 --set engine.train_batch_size=2 --set "
      "training.steps=2 --set training.checkpoint_every=0";
  const std::string files = in_files({path("files"), path("files")}, 3);
  const int64_t need = estimate(run + files).at("peak_bytes_of_all").get<int64_t>();
  EXPECT_LT(need, estimate(run + in_files({}, 3)).at("peak_bytes_of_all").get<int64_t>() / 5 * 4);
  const test::LimitedGroup group(need + need / 10);
  if (!group.exists() || test::machine_swaps()) {
    GTEST_SKIP() << "this user may not make control groups, or the machine swaps";
  }
  // Whether a run in memory ends at this limit depends on who is charged for libtorch's code:
  // tests/engine/offload_memory_test.cpp has a model that is far beyond its limit.
  const Finished trained = sh(concat(group.enter(), "OMP_NUM_THREADS=1 ", kTrireme, " train ", path("run.json"),
                                     " --out ", path("out"), ' ', run, files),
                              200);
  EXPECT_EQ(trained.status, 0) << trained.output;
  EXPECT_THAT(trained.output, HasSubstr("step 2/2"));
}

} // namespace
} // namespace trireme::tools
