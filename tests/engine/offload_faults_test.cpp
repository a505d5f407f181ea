// Ranks whose disk fails, and ranks that are killed, with states in files: checkpoints are whole, and nothing else is
// left.
#include "layered_run.h"

#include <trireme/base/file.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kLast = 12;

config::EngineConfig all_in_files(const fs::path& folder) {
  config::EngineConfig config = zero_config(3, 1);
  config.offload.optimizer.place = config.offload.parameters.place = offload::Place::nvme;
  config.offload.optimizer.nvme_path = config.offload.parameters.nvme_path = folder;
  config.offload.optimizer.buffer_count = config.offload.parameters.buffer_count = 3;
  config.offload.optimizer.pipeline_read = config.offload.optimizer.pipeline_write = true;
  config.offload.parameters.max_in_cpu = 0;
  return config;
}

/// Losses of steps by number, seen by all processes of the test.
struct Losses {
  double* of_step =
      static_cast<double*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ~Losses() { ::munmap(of_step, 4096); }
  /// The last step that was said to be saved.
  double& saved() const { return of_step[kLast]; }
  std::vector<double> first(int count) const { return {of_step, of_step + count}; }
};

/// Goes on from the last checkpoint to the last step, and saves each.
void train_on(comm::World& world, const config::EngineConfig& config, const fs::path& saved, const Losses& losses) {
  LayeredRun run(world, config);
  run.engine().load_checkpoint(saved);
  EXPECT_GE(static_cast<double>(run.engine().global_steps()), losses.saved()) << "a step that was saved is lost";
  while (run.engine().global_steps() < kLast) {
    const double loss = run.step();
    losses.of_step[run.engine().global_steps() - 1] = loss;
    run.engine().save_checkpoint(saved);
    losses.saved() = static_cast<double>(run.engine().global_steps());
  }
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_directory()) {
      found.push_back(entry.path());
    }
  }
  return found;
}

TEST(OffloadFaultsTest, KilledAtAnyMomentARunLosesNothingSavedAndLeavesNoFile) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  const Losses expected;
  const Losses losses;
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_THAT(
      run_ranks(1,
                [&](comm::World& world) { train_on(world, zero_config(3, 1), scratch.path / "of_memory", expected); }),
      IsEmpty());
  const auto whole_run =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
  fs::create_directory(scratch.path / "nvme");
  std::mt19937 random(7);
  int killed = 0;
  for (int attempt = 0; attempt < 12; ++attempt) {
    const std::chrono::microseconds life(whole_run.count() * (random() % 1000) / 1500);
    const std::vector<std::string> ends = run_ranks(1, [&](comm::World& world) {
      std::thread([life] {
        std::this_thread::sleep_for(life);
        ::kill(::getpid(), SIGKILL);
      }).detach();
      train_on(world, all_in_files(scratch.path / "nvme"), scratch.path / "saved", losses);
    });
    EXPECT_THAT(ends, Each(HasSubstr("signal 9")));
    killed += ends.empty() ? 0 : 1;
    EXPECT_THAT(files_in(scratch.path / "nvme"), IsEmpty());
  }
  EXPECT_GT(killed, 0);
  on_ranks(1, [&](comm::World& world) {
    train_on(world, all_in_files(scratch.path / "nvme"), scratch.path / "saved", losses);
  });
  EXPECT_EQ(losses.first(kLast), expected.first(kLast)) << "whichever life computed a step";
  EXPECT_TRUE(fs::is_empty(scratch.path / "nvme"));
}

/// While it lives, the kernel refuses every write to a file: EFBIG.
struct NoWrites {
  rlimit before{};
  NoWrites() {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before);
    const rlimit none{0, before.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  }
  ~NoWrites() { ::setrlimit(RLIMIT_FSIZE, &before); }
};

/// Makes the open files that held offloaded arrays `bytes` long.
void cut_files(const fs::path& folder, off_t bytes) {
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry.path(), error).string();
    if (!error && target.starts_with(folder.string()) && target.ends_with(" (deleted)")) {
      EXPECT_EQ(::truncate(entry.path().c_str(), bytes), 0);
    }
  }
}

TEST(OffloadFaultsTest, ADiskThatFailsEndsTheStepWithASentenceAndTheCheckpointStaysWhole) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  const Losses expected;
  ASSERT_THAT(
      run_ranks(1,
                [&](comm::World& world) { train_on(world, zero_config(3, 1), scratch.path / "of_memory", expected); }),
      IsEmpty());
  for (const bool writes : {true, false}) {
    const fs::path saved = scratch.path / (writes ? "saved_w" : "saved_r");
    on_ranks(1, [&](comm::World& world) {
      const fs::path nvme = scratch.path / "nvme";
      {
        LayeredRun run(world, all_in_files(nvme));
        for (int step = 0; step < 3; ++step) {
          EXPECT_EQ(run.step(), expected.of_step[step]);
        }
        run.engine().save_checkpoint(saved);
        std::string error = "no error";
        try {
          std::optional<NoWrites> refused;
          writes ? static_cast<void>(refused.emplace()) : cut_files(nvme, 0);
          run.step();
          run.step();
        } catch (const std::exception& failure) {
          error = failure.what();
        }
        EXPECT_THAT(error, AllOf(HasSubstr(writes ? "cannot write" : "cannot read"),
                                 HasSubstr((nvme / "trireme.rank0").string()), HasSubstr("at offset"),
                                 HasSubstr("are free in")));
      }
      EXPECT_TRUE(fs::is_empty(nvme));
      LayeredRun again(world, all_in_files(nvme));
      ASSERT_TRUE(again.engine().load_checkpoint(saved));
      for (int step = 3; step < 6; ++step) {
        EXPECT_EQ(again.step(), expected.of_step[step]);
      }
    });
  }
}

} // namespace
} // namespace trireme::engine
