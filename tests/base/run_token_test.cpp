#include <trireme/base/run_token.h>

#include <trireme/base/file.h>

#include <gmock/gmock.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class RunTokenTest : public testing::Test {
 protected:
  std::vector<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(logs)) {
      names.insert(entry.path().filename().string());
    }
    return {names.begin(), names.end()};
  }
  static std::string refusal_of(const RunToken& token) {
    try {
      token.check();
    } catch (const ReplacedError& error) {
      EXPECT_EQ(error.exit_code(), 1);
      return error.what();
    }
    return "";
  }
  const ScratchFolder scratch{make_scratch_folder("trireme_token")};
  const fs::path logs = scratch.path / "run" / "logs";
};

TEST_F(RunTokenTest, TheNewestAttemptMayWriteAndAnOlderOneIsTold) {
  RunToken first(logs);
  first.check(); // has claimed nothing: does nothing
  first.claim();
  first.check();
  EXPECT_EQ(first.attempt(), 1);
  ::setenv("TRIREME_HOST", "node7", 1);
  RunToken second(logs);
  second.claim();
  EXPECT_EQ(second.attempt(), 2);
  second.check();
  EXPECT_THAT(refusal_of(first), AllOf(HasSubstr("this training (attempt 1) was replaced by attempt 2, started 20"),
                                       HasSubstr("Z on host node7, which writes into "),
                                       HasSubstr("/run now; this one writes nothing more."), HasSubstr("--resume")));
  EXPECT_THAT(files(), ElementsAre("attempt.2"));
  RunToken third(logs);
  third.claim();
  EXPECT_THAT(refusal_of(first), HasSubstr("replaced by attempt 3"));
  EXPECT_THAT(refusal_of(second), HasSubstr("replaced by attempt 3"));
  third.check();
  second.claim(); // takes it back, with a number above any before
  EXPECT_EQ(second.attempt(), 4);
  EXPECT_THAT(refusal_of(third), HasSubstr("replaced by attempt 4"));
}

// As a holder finds it while another one has made its claim and not yet removed the earlier ones.
TEST_F(RunTokenTest, TheNextClaimBesideTheOwnOneCounts) {
  RunToken first(logs);
  first.claim();
  std::ofstream(logs / "attempt.2") << R"({"attempt": 2, "host": "b", "started": "2026-01-01T00:00:00Z", "id": "x"})";
  EXPECT_THAT(refusal_of(first), HasSubstr("attempt 2, started 2026-01-01T00:00:00Z on host b"));
}

TEST_F(RunTokenTest, AFolderThatWasEmptiedOrMadeAnewHasNoClaimOfBefore) {
  RunToken token(logs);
  token.claim();
  fs::remove_all(logs);
  EXPECT_THAT(refusal_of(token), HasSubstr("the run folder was removed or emptied; this one writes nothing more"));
  RunToken other(logs);
  other.claim();
  EXPECT_EQ(other.attempt(), 1);
  EXPECT_THAT(refusal_of(token), HasSubstr("replaced by attempt 1")) << "of the same number";
  other.check();
}

// The launcher claims first; its processes take over from each other until another job comes.
TEST_F(RunTokenTest, ProcessesOfAJobTakeOverFromEachOtherOnly) {
  RunToken launcher(logs, "job1");
  launcher.claim();
  RunToken worker(logs, "job1", launcher.attempt());
  worker.claim();
  RunToken other_worker(logs, "job1", launcher.attempt());
  other_worker.claim();
  other_worker.check();
  try {
    worker.check();
    ADD_FAILURE() << "is not the newest";
  } catch (const ReplacedError& error) {
    EXPECT_TRUE(error.by_own_job());
  }
  worker.claim();
  worker.check();
  RunToken(logs, "job1", launcher.attempt()).check_job();
  RunToken next_launcher(logs, "job2");
  next_launcher.claim();
  try {
    worker.check();
    ADD_FAILURE() << "is not the newest";
  } catch (const ReplacedError& error) {
    EXPECT_FALSE(error.by_own_job());
  }
  EXPECT_THROW(worker.claim(), ReplacedError);
  EXPECT_THROW(other_worker.claim(), ReplacedError);
  EXPECT_THROW(RunToken(logs, "job1", launcher.attempt()).check_job(), ReplacedError)
      << "of a server, which claims nothing";
  next_launcher.check();
}

TEST_F(RunTokenTest, WithoutAJobsNameNobodyElseIsOfIt) {
  RunToken first(logs);
  RunToken second(logs);
  first.claim();
  second.claim();
  try {
    first.check();
    ADD_FAILURE() << "it was replaced";
  } catch (const ReplacedError& error) {
    EXPECT_FALSE(error.by_own_job());
  }
}

TEST_F(RunTokenTest, AJobThatTorchrunStartsAgainTakesNothingBack) {
  for (const char* name : {"TRIREME_RUN_ID", "TRIREME_RUN_ATTEMPT", "SLURM_JOB_ID", "TF_CONFIG"}) {
    ::unsetenv(name);
  }
  ::setenv("TORCHELASTIC_RUN_ID", "one", 1);
  ::setenv("TORCHELASTIC_RESTART_COUNT", "0", 1);
  RunToken::of_environment(logs).claim();
  ::setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
  RunToken again = RunToken::of_environment(logs);
  again.claim();
  again.check();
  RunToken later(logs, "two");
  later.claim();
  EXPECT_THROW(RunToken::of_environment(logs).claim(), ReplacedError);
  later.check();
}

TEST_F(RunTokenTest, OfSeveralAtTheSameMomentOneHasIt) {
  constexpr int kProcesses = 8;
  constexpr int kClaims = 25;
  int results[2];
  ASSERT_EQ(::pipe(results), 0);
  for (int process = 0; process < kProcesses; ++process) {
    if (::fork() == 0) {
      for (int i = 0; i < kClaims; ++i) {
        RunToken token(logs);
        token.claim();
        const int64_t attempt = token.attempt();
        if (::write(results[1], &attempt, sizeof attempt) != sizeof attempt) {
          ::_exit(1);
        }
      }
      ::_exit(0);
    }
  }
  for (int process = 0; process < kProcesses; ++process) {
    int status = 0;
    ASSERT_GT(::wait(&status), 0);
    EXPECT_EQ(status, 0);
  }
  std::set<int64_t> attempts;
  for (int i = 0; i < kProcesses * kClaims; ++i) {
    int64_t attempt = 0;
    ASSERT_EQ(::read(results[0], &attempt, sizeof attempt), static_cast<ssize_t>(sizeof attempt));
    EXPECT_TRUE(attempts.insert(attempt).second) << attempt << " was given twice";
  }
  EXPECT_GE(*attempts.rbegin(), kProcesses * kClaims);
  EXPECT_THAT(files(), ElementsAre(concat("attempt.", *attempts.rbegin())));
}

TEST_F(RunTokenTest, OtherFilesStayAndTheClaimIsForItsUserOnly) {
  fs::create_directories(logs);
  std::ofstream(logs / "attempt.old") << "mine";
  std::ofstream(logs / "rank0.log") << "mine";
  RunToken token(logs);
  token.claim();
  EXPECT_THAT(files(), ElementsAre("attempt.1", "attempt.old", "rank0.log"));
  EXPECT_EQ(fs::status(logs / "attempt.1").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(RunTokenTest, AFolderThatCannotBeWrittenIsSaid) {
  std::ofstream(scratch.path / "run") << "a file";
  RunToken token(logs);
  EXPECT_THROW(token.claim(), std::exception);
}

// Between a look at the last claim and the next number, the newer job may claim.
TEST_F(RunTokenTest, AnOlderJobNeverTakesTheFolderBack) {
  for (int turn = 0; turn < 100; ++turn) {
    const fs::path folder = scratch.path / std::to_string(turn);
    RunToken launcher(folder, "job 1");
    launcher.claim();
    RunToken worker(folder, "job 1", launcher.attempt());
    RunToken later(folder, "job 2");
    std::atomic<int> there = 0;
    bool has_claimed = false;
    std::thread older([&] {
      for (++there; there < 2;) {
      }
      try {
        worker.claim();
        has_claimed = true;
      } catch (const ReplacedError&) {
      }
    });
    for (++there; there < 2;) {
    }
    later.claim();
    older.join();
    ASSERT_FALSE(has_claimed && worker.attempt() > later.attempt()) << "turn " << turn;
  }
}

} // namespace
} // namespace trireme
