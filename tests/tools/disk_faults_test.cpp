// Whole trainings with everything in files, of which one call to the system fails: an end or the same losses, and
// nothing saved is lost.
#include "run_in_files.h"
#include "traced_calls.h"

#include <tests/support/folders.h>
#include <tests/support/xfs_disk.h>

#include <gmock/gmock.h>
#include <sched.h>

#include <iostream>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr int kSteps = 4;
const std::map<std::string, std::string> kReasons = {{"EIO", "Input/output error"},
                                                     {"ENOSPC", "No space left on device"}};

bool tests_all() {
  return std::getenv("TRIREME_LONG_TESTS") != nullptr;
}

// TRIREME_LONG_TESTS=N: of each kind of call every N-th is let fail.
std::vector<TracedCall> every_nth(const std::vector<TracedCall>& calls) {
  const size_t n = std::max(1, std::atoi(std::getenv("TRIREME_LONG_TESTS")));
  std::vector<TracedCall> some;
  for (size_t i = n / 2 % calls.size(); i < calls.size(); i += n) {
    some.push_back(calls[i]);
  }
  return some;
}

class DiskFaultsTest : public RunFolder {
 protected:
  void SetUp() override {
    if (const Finished tried = sh("strace -f -qq --seccomp-bpf -o /dev/null -e inject=fsync:error=EIO true");
        tried.status != 0) {
      GTEST_SKIP() << "strace cannot be used here: " << tried.output;
    }
    fs::create_directories(folder / "bin"); // `trireme` starts the trireme-rank that lies beside it
    fs::copy_file(test::binary_dir() + "/bin/trireme", folder / "bin/trireme");
  }

  // Everything of the runs lies on `disk`.
  void use(const fs::path& disk, int ranks, const std::string& aio) {
    disk_ = disk;
    ranks_ = ranks;
    aio_ = aio;
    write_file_atomically(folder / "files.json", run_in_files(path("tokens.bin"), disk));
  }
  fs::path out(const std::string& name) const { return disk_ / name; }
  fs::path log() const { return folder / "strace"; }
  // `strace`: options for rank `traced`; none: it is not traced.
  Finished train(const std::string& name, const std::string& options, const std::string& strace = "",
                 int traced = 0) const {
    const std::string real = test::binary_dir() + "/bin/trireme-rank";
    const std::string trace = strace.empty()
                                  ? ""
                                  : concat("[ \"$RANK\" = ", traced, " ] && exec strace -f -qq -y --seccomp-bpf -o ",
                                           log().string(), ' ', strace, " \"", real, "\" \"$@\"\n");
    write_file_atomically(folder / "bin/trireme-rank", concat("#!/bin/sh\n", trace, "exec \"", real, "\" \"$@\"\n"),
                          0755);
    fs::remove(log());
    return sh(concat("OMP_NUM_THREADS=1 TRIREME_AIO=", aio_, ' ', path("bin/trireme"), " train ", path("files.json"),
                     " -n ", ranks_, " --out ", out(name).string(), " --set training.keep_checkpoints=0 ", options),
              150);
  }
  std::vector<fs::path> folders() const { return {disk_ / "nvme", disk_ / "moved", disk_ / "checkpoints"}; }

  void train_clean() {
    const Finished run = train("clean", "");
    ASSERT_EQ(run.status, 0) << run.output;
    losses_ = trained_steps(out("clean"));
    ASSERT_EQ(std::ssize(losses_), kSteps);
    EXPECT_EQ(left_on_disk(), "");
  }
  // What a run may not leave where its files were.
  std::string left_on_disk(bool folders_too = true) const {
    std::string left;
    for (const char* place : {"nvme", "moved"}) {
      for (const std::string& name : files_in(disk_ / place)) {
        left += folders_too || !fs::is_directory(disk_ / place / name) ? concat(place, '/', name, ' ') : "";
      }
    }
    return left;
  }
  void expect_as_clean(const std::string& name, int step) const {
    const fs::path checkpoint = concat("checkpoints/global_step", step);
    for (int rank = 0; rank < ranks_; ++rank) {
      EXPECT_TRUE(saved_tensors(out(name) / checkpoint, rank) == saved_tensors(out("clean") / checkpoint, rank))
          << checkpoint << " of rank " << rank;
    }
  }

  // Of a run that had a fault: it ended by itself, says what failed (where that was a file of the run), and whatever it
  // saved, or went on without saying that it could not, is right.
  void expect_right(const std::string& name, const Finished& run, const std::string& reason, bool of_run = true) const {
    EXPECT_NE(run.status, 124) << "it did not end";
    EXPECT_LT(run.status, 128) << "a crash";
    const std::vector<std::string> steps = trained_steps(out(name));
    EXPECT_TRUE(steps.size() <= losses_.size() && std::equal(steps.begin(), steps.end(), losses_.begin()))
        << testing::PrintToString(steps);
    for (const int step : {kSteps / 2, kSteps}) {
      const bool is_done = step == kSteps ? run.status == 0 : std::ssize(steps) > step;
      const bool said_so = run.output.find(concat("checkpoint at step ", step, " failed")) != std::string::npos;
      if (is_done && !said_so) {
        ASSERT_TRUE(fs::exists(out(name) / concat("checkpoints/global_step", step, "/manifest.json")))
            << "what was said to be saved is lost";
      }
      if (fs::exists(out(name) / concat("checkpoints/global_step", step))) {
        expect_as_clean(name, step);
      }
    }
    if (run.status == 0) {
      EXPECT_EQ(steps, losses_);
    }
    if (of_run && (run.status != 0 || run.output.find(" failed, training goes on") != std::string::npos)) {
      EXPECT_THAT(run.output, AllOf(HasSubstr(reason), HasSubstr("cannot "), HasSubstr(disk_.string() + '/')));
      if (reason == kReasons.at("ENOSPC")) {
        EXPECT_THAT(run.output, HasSubstr(" free"));
      }
    }
  }
  // The next start goes on to the same losses and leaves a clean folder.
  void expect_goes_on(const std::string& name) const {
    const bool was_done =
        fs::exists(out(name) / concat("checkpoints/global_step",
                                      kSteps)); // then there is no save that removes what another has left
    const Finished run = train(name, "--resume");
    EXPECT_EQ(run.status, 0) << run.output;
    EXPECT_EQ(trained_steps(out(name)), losses_);
    EXPECT_EQ(left_on_disk(), "");
    expect_as_clean(name, kSteps);
    for (const auto& entry : fs::directory_iterator(out(name) / "checkpoints")) {
      const std::string file = entry.path().filename().string();
      EXPECT_TRUE(file == "latest" || file.starts_with("global_step") || was_done) << file;
    }
    EXPECT_EQ(sh(concat(kTrireme, " inspect ", (out(name) / "checkpoints").string())).status, 0);
  }

  // So that all runs make the same calls.
  void remove_all_of(const std::string& name) const {
    fs::remove_all(out(name));
    fs::remove_all(disk_ / "nvme");
    fs::remove_all(disk_ / "moved");
  }

  // Lets calls of rank `traced` fail, each in a run of its own: all of them, or one of every `stride`-th kind.
  void for_each_fault(int traced, int stride) {
    const std::set<std::string> shared_memory = files_in("/dev/shm");
    remove_all_of("counted");
    const Finished counted = train("counted", "", concat("-e trace=", kFileCalls), traced);
    ASSERT_EQ(counted.status, 0) << counted.output;
    std::vector<fs::path> places = folders();
    places.back() = out("counted") / "checkpoints";
    const std::set<TracedCall> calls = traced_calls(log(), places);
    std::map<std::string, std::vector<TracedCall>> kinds; // of a place, and of the file
    for (const TracedCall& call : calls) {
      kinds[concat(call.place, ' ', call.call)].push_back(call);
    }
    int runs = 0;
    int hits = 0;
    int ended = 0;
    int chosen = 0;
    int number = 0;
    for (const auto& [kind, all] : kinds) {
      if (!tests_all() && number++ % stride != 0) {
        continue;
      }
      const bool only_reads = all[0].call == "pread64" || all[0].call == "read" || all[0].call == "flock" ||
                              all[0].call == "unlinkat" || all[0].call == "unlink" || all[0].call == "rmdir";
      const auto one = all.begin() + (std::ssize(all) - 1) * 2 / 3;
      const std::vector<TracedCall> wanted = tests_all() ? every_nth(all) : std::vector<TracedCall>{*one};
      std::vector<std::string> codes =
          only_reads ? std::vector<std::string>{"EIO"} : std::vector<std::string>{"EIO", "ENOSPC"};
      if (!tests_all()) {
        codes = {codes[static_cast<size_t>(chosen++) % codes.size()]};
      }
      for (const std::string& code : codes) {
        int tries = 0;
        for (size_t i = 0; i < wanted.size();) {
          SCOPED_TRACE(concat(wanted[i].text(), ": ", code));
          const Finished run = train("faulty", "", wanted[i].failing(code), traced);
          const std::string injected = first_injected(log());
          SCOPED_TRACE(concat(injected, '\n', run.output));
          // With ranks that wait for each other the n-th call of one run may be another one in the next, that of a file
          // which is no part of the run: it is aimed at again, twice.
          const auto names = [&](const fs::path& path) { return injected.find(path.string()) != std::string::npos; };
          const bool is_hit = names(disk_ / wanted[i].place) || names(out("faulty") / wanted[i].place);
          hits += is_hit ? 1 : 0;
          ended += run.status != 0 ? 1 : 0;
          expect_right("faulty", run, kReasons.at(code), names(disk_) || names(out("faulty")));
          if (wanted[i].call.find("unlink") == std::string::npos && wanted[i].call != "rmdir") {
            EXPECT_EQ(left_on_disk(false), "");
          }
          if (i == 0 || testing::Test::HasFailure()) { // later ones have the same files
            expect_goes_on("faulty");
          }
          remove_all_of("faulty");
          if (is_hit || ++tries == 3) {
            ++runs;
            ++i;
            tries = 0;
          }
        }
      }
      if (tests_all()) {
        std::cout << kind << ": " << all.size() << " calls; so far " << runs << " runs, " << hits << " hits, " << ended
                  << " ended with an error" << std::endl;
      }
    }
    std::cout << calls.size() << " calls of " << kinds.size() << " kinds on " << disk_ << ", " << ranks_
              << " ranks, rank " << traced << ": " << runs << " runs with a fault, " << hits
              << " hit a file of the run, " << ended << " ended with an error, the others went on rightly" << std::endl;
    EXPECT_GE(hits * 4, runs * 3) << "calls are not the same in each run"; // nearly: ranks wait for each other
    EXPECT_GE(kinds.size(), 12u);
    EXPECT_EQ(left_in_shared_memory(shared_memory), "");
  }

  fs::path disk_;
  int ranks_ = 1;
  std::string aio_;
  std::vector<std::string> losses_;
};

TEST_F(DiskFaultsTest, OfOneRankEndItOrChangeNothing) {
  use(folder / "disk", 1, "threads");
  ASSERT_NO_FATAL_FAILURE(train_clean());
  for_each_fault(0, 2);
}

TEST_F(DiskFaultsTest, OfASecondRankEndBoth) {
  use(folder / "disk", 2, "threads");
  ASSERT_NO_FATAL_FAILURE(train_clean());
  for_each_fault(1, 3);
}

// Of the calls that read a checkpoint: the run ends with the reason, or begins again where it can, and the checkpoint
// stays.
TEST_F(DiskFaultsTest, OfALoadLoseNothing) {
  use(folder / "disk", 1, "threads");
  ASSERT_NO_FATAL_FAILURE(train_clean());
  ASSERT_EQ(train("half", concat("--set training.steps=", kSteps / 2)).status, 0);
  fs::copy(out("half"), out("counted"), fs::copy_options::recursive);
  ASSERT_EQ(train("counted", "--resume", "-e trace=openat,read,pread64,mmap").status, 0);
  const std::set<TracedCall> calls = traced_calls(log(), {out("counted") / "checkpoints/global_step2"});
  ASSERT_GE(calls.size(), 4u);
  int runs = 0;
  int ended = 0;
  for (const TracedCall& call : calls) {
    if (!tests_all() && runs >= 2) {
      break;
    }
    SCOPED_TRACE(call.text());
    fs::copy(out("half"), out("faulty"), fs::copy_options::recursive);
    const Finished run = train("faulty", "--resume", call.failing("EIO"));
    SCOPED_TRACE(concat(first_injected(log()), '\n', run.output));
    EXPECT_NE(run.status, 124);
    EXPECT_LT(run.status, 128);
    if (run.status != 0) {
      ++ended;
      EXPECT_THAT(run.output, AllOf(HasSubstr(kReasons.at("EIO")), HasSubstr(out("faulty").string())));
    }
    expect_goes_on("faulty");
    fs::remove_all(out("faulty"));
    ++runs;
  }
  std::cout << calls.size() << " calls, " << runs << " runs with a fault, " << ended << " ended with an error"
            << std::endl;
}

// FICLONERANGE, and what a checkpoint does with shared blocks.
TEST_F(DiskFaultsTest, WhereBlocksAreShared) {
  const test::XfsDisk disk(folder / "disk");
  if (!disk.is_mounted()) {
    GTEST_SKIP() << test::XfsDisk::kNeeds;
  }
  use(folder / "disk", 1, "threads");
  ASSERT_NO_FATAL_FAILURE(train_clean());
  remove_all_of("counted");
  ASSERT_EQ(train("counted", "", "-e trace=ioctl").status, 0);
  const std::set<TracedCall> clones = traced_calls(log(), {out("counted") / "checkpoints"});
  ASSERT_GE(clones.size(), 2u) << "no blocks were shared";
  int runs = 0;
  for (const TracedCall& clone : clones) {
    for (const char* code : {"EIO", "ENOSPC"}) {
      if (!tests_all() && runs > 0) {
        break;
      }
      SCOPED_TRACE(concat(clone.text(), ": ", code));
      const Finished run = train("faulty", "", clone.failing(code));
      EXPECT_THAT(first_injected(log()), HasSubstr("FICLONERANGE"));
      EXPECT_EQ(run.status, 0) << "it is copied then: " << run.output;
      expect_right("faulty", run, kReasons.at(code));
      EXPECT_EQ(left_on_disk(), "");
      fs::remove_all(out("faulty"));
      ++runs;
    }
  }
  std::cout << clones.size() << " clones, " << runs << " runs in which one failed" << std::endl;
}

// What io_uring refuses is done by threads.
TEST_F(DiskFaultsTest, OfIoUringChangeNothing) {
  use(folder / "disk", 1, "io_uring");
  ASSERT_NO_FATAL_FAILURE(train_clean());
  ASSERT_EQ(train("counted", "", "-e trace=io_uring_setup,io_uring_enter").status, 0);
  std::ifstream lines(log());
  const std::string seen{std::istreambuf_iterator<char>(lines), {}};
  if (seen.find("io_uring_enter(") == std::string::npos) {
    GTEST_SKIP() << "there is no io_uring here";
  }
  int runs = 0;
  for (const char* call : {"io_uring_setup", "io_uring_enter"}) {
    for (const char* code : {"EIO", "ENOSPC"}) {
      for (const char* when : {"1", "2", "3", "5", "9", "1+"}) {
        if (!tests_all() && (std::string(when) != "2" || std::string(code) != "EIO")) {
          continue;
        }
        SCOPED_TRACE(concat(call, ' ', when, ' ', code));
        const Finished run =
            train("faulty", "", concat("-e trace=", call, " -e inject=", call, ":error=", code, ":when=", when));
        EXPECT_EQ(run.status, 0) << run.output;
        EXPECT_NE(first_injected(log()), "");
        expect_right("faulty", run, kReasons.at(code));
        EXPECT_EQ(left_on_disk(), "");
        fs::remove_all(out("faulty"));
        ++runs;
      }
    }
  }
  std::cout << runs << " runs with a fault" << std::endl;
}

// io_uring's transfers complete in the kernel: here it is the disk that fails, a file system in a file that loses its
// end while the run trains.
TEST_F(DiskFaultsTest, OfTheDiskItselfEndTheRunAndWhatWasSavedGoesOnElsewhere) {
  const fs::path failing = folder / "failing";
  fs::create_directories(failing);
  if (::geteuid() != 0 || ::unshare(CLONE_NEWNS) != 0) {
    GTEST_SKIP() << "only root mounts files";
  }
  const Finished mounted =
      sh(concat("mount --make-rprivate / && truncate -s 64M ", path("image"), " && mkfs.ext4 -q -E nodiscard ",
                path("image"), " && mount -o loop ", path("image"), " ", failing.string(),
                " && losetup --direct-io=on $(losetup -n -O NAME -j ", path("image"), ")"));
  if (mounted.status != 0) {
    GTEST_SKIP() << mounted.output;
  }
  use(folder / "disk", 1, "io_uring");
  const std::string elsewhere =
      concat(" --set engine.zero_optimization.offload_optimizer.nvme_path=", (failing / "nvme").string(),
             " --set engine.zero_optimization.offload_param.nvme_path=", (failing / "nvme").string(),
             " --set training.checkpoint_every=2 --set training.steps=");
  const std::string breaker =
      concat("while [ \"$(cat ", (out("broken") / "metrics.jsonl").string(),
             " 2>/dev/null | wc -l)\" -lt 7 ]; do sleep 0.01; done; truncate -s 2M ", path("image"));
  write_file_atomically(folder / "breaker", breaker);
  const Finished broken = [&] {
    const Finished started = sh(concat("timeout 100 sh ", path("breaker"), " > /dev/null 2>&1 & echo $!"));
    EXPECT_EQ(started.status, 0);
    return train("broken", elsewhere + "100000");
  }();
  EXPECT_EQ(sh(concat("umount ", failing.string())).status, 0) << "something is still open";
  EXPECT_THAT(broken.status, AnyOf(1, 2)) << broken.output;
  EXPECT_THAT(broken.output, AllOf(AnyOf(HasSubstr("Input/output error"), HasSubstr("the disk has changed bucket ")),
                                   HasSubstr((failing / "nvme").string())));
  const std::string latest = read_file(out("broken") / "checkpoints/latest");
  const int saved = std::stoi(latest.substr(std::string("global_step").size()));
  EXPECT_GE(saved, 6);
  const int last = saved + 2;
  const std::string steps = concat("--set training.checkpoint_every=2 --set training.steps=", last);
  const Finished resumed = train("broken", steps + " --resume");
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr(concat("at step ", saved)));
  ASSERT_EQ(train("clean", steps).status, 0);
  EXPECT_EQ(trained_steps(out("broken")), trained_steps(out("clean")));
  expect_as_clean("broken", last);
  EXPECT_EQ(left_on_disk(), "");
}

} // namespace
} // namespace trireme::tools
