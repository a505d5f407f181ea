// A folder that is one process's: a lock that ends with it, and nothing of an earlier one.
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/offload/rank_folder.h>

#include <gmock/gmock.h>

#include <csignal>
#include <fstream>

#include <sys/wait.h>
#include <unistd.h>

namespace trireme::offload {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

/// A process that has the folder of rank 0, and nothing else to do.
class Holder {
 public:
  explicit Holder(const fs::path& parent) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto folder = RankFolder::open(parent, 0);
      std::ofstream(folder->path() / "left") << "something";
      const ssize_t told = ::write(ready[1], "x", 1);
      for (;;) {
        if (told != 1) {
          ::_exit(1);
        }
        ::pause();
      }
    }
    char byte = 0;
    ::close(ready[1]);
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
  }
  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = 0;
    }
  }
  ~Holder() {
    kill();
  }
  pid_t pid() const {
    return pid_;
  }

 private:
  pid_t pid_ = 0;
};

std::string refusal(const fs::path& parent, int rank) {
  try {
    RankFolder::open(parent, rank);
  } catch (const InputError& error) {
    return error.what();
  }
  return "not refused";
}

TEST(RankFolderTest, IsRefusedToASecondJobUntilTheFirstIsGoneHoweverItEnds) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  Holder holder(scratch.path);
  EXPECT_THAT(refusal(scratch.path, 0), AllOf(HasSubstr((scratch.path / "trireme.rank0").string()), HasSubstr(concat("of another job (process ", holder.pid(), ") that still runs")),
                                              HasSubstr("an \"nvme_path\" of its own")));
  EXPECT_TRUE(fs::exists(scratch.path / "trireme.rank0" / "left")) << "the other job's files";
  EXPECT_EQ(refusal(scratch.path, 1), "not refused") << "another rank";
  holder.kill();
  const auto folder = RankFolder::open(scratch.path, 0);
  EXPECT_TRUE(fs::is_empty(folder->path())) << "what a killed run left is worth nothing";
}

TEST(RankFolderTest, IsOneEnginesOfThisProcess) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  auto folder = RankFolder::open(scratch.path / "new" / "folders", 0);
  EXPECT_THAT(refusal(scratch.path / "new" / "folders", 0), HasSubstr("another engine of this process"));
  std::ofstream(folder->path() / "file") << "x";
  folder.reset();
  EXPECT_FALSE(fs::exists(scratch.path / "new" / "folders" / "trireme.rank0"));
  folder = RankFolder::open(scratch.path / "new" / "folders", 0);
  EXPECT_TRUE(fs::is_directory(folder->path()));
}

TEST(RankFolderTest, AFolderThatCannotBeMadeIsTheUsersToMend) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  std::ofstream(scratch.path / "file") << "x";
  EXPECT_THAT(refusal(scratch.path / "file", 0), AllOf(HasSubstr("cannot make the folder"), HasSubstr("nvme_path")));
}

} // namespace
} // namespace trireme::offload
