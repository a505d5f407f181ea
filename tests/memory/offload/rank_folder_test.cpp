// A folder that is one process's: a lock that ends with it, and nothing of an earlier one.
#include <tests/support/other_user.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/memory/offload/rank_folder.h>

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
      std::ofstream(folder->path() / "optimizer_states.0") << "something";
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
  ~Holder() { kill(); }
  pid_t pid() const { return pid_; }

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
  EXPECT_THAT(refusal(scratch.path, 0),
              AllOf(HasSubstr((scratch.path / "trireme.rank0").string()),
                    HasSubstr(concat("of another job (process ", holder.pid(), ") that still runs")),
                    HasSubstr("its own \"nvme_path\"")));
  EXPECT_TRUE(fs::exists(scratch.path / "trireme.rank0" / "optimizer_states.0")) << "the other job's files";
  EXPECT_EQ(refusal(scratch.path, 1), "not refused") << "another rank";
  holder.kill();
  const auto folder = RankFolder::open(scratch.path, 0);
  EXPECT_TRUE(fs::is_empty(folder->path())) << "what a killed run left is worth nothing";
}

TEST(RankFolderTest, IsOneEnginesOfThisProcess) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  auto folder = RankFolder::open(scratch.path / "new" / "folders", 0);
  EXPECT_THAT(refusal(scratch.path / "new" / "folders", 0), HasSubstr("another engine of this process"));
  std::ofstream(folder->path() / "gradients.12") << "x";
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

TEST(RankFolderTest, ALinkInItsPlaceIsRefusedAndWhatItLeadsToIsLeftAlone) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  fs::create_directory(scratch.path / "precious");
  for (const char* name : {"thesis.tex", "optimizer_states.0"}) {
    std::ofstream(scratch.path / "precious" / name) << "years";
  }
  fs::create_directory_symlink(scratch.path / "precious", scratch.path / "trireme.rank0");
  fs::create_directory_symlink(scratch.path / "gone", scratch.path / "trireme.rank1");
  std::ofstream(scratch.path / "trireme.rank2") << "a file";
  EXPECT_THAT(refusal(scratch.path, 0),
              AllOf(HasSubstr((scratch.path / "trireme.rank0").string()), HasSubstr("is a symbolic link"),
                    HasSubstr("another folder with \"nvme_path\"")));
  EXPECT_THAT(refusal(scratch.path, 1), HasSubstr("is a symbolic link"));
  EXPECT_THAT(refusal(scratch.path, 2), HasSubstr("is not a folder"));
  EXPECT_EQ(read_file(scratch.path / "precious" / "thesis.tex"), "years");
  EXPECT_EQ(read_file(scratch.path / "precious" / "optimizer_states.0"), "years");
  EXPECT_TRUE(fs::is_symlink(scratch.path / "trireme.rank0"));
  EXPECT_FALSE(fs::exists(scratch.path / "gone"));
  EXPECT_EQ(read_file(scratch.path / "trireme.rank2"), "a file");
  fs::create_directory_symlink(scratch.path / "precious", scratch.path / "disk");
  EXPECT_EQ(refusal(scratch.path / "disk", 0), "not refused") << "nvme_path itself may be a link";
  EXPECT_EQ(read_file(scratch.path / "precious" / "thesis.tex"), "years");
}

TEST(RankFolderTest, OnlyFilesOfOursAreRemoved) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  const fs::path own = scratch.path / "trireme.rank0";
  fs::create_directories(own / "parameters.1" / "below");
  for (const char* name : {"optimizer_states.0", "modules_as_they_are_built.3", "optimizer_states.x", "states.1",
                           "thesis.tex", "parameters.1/below/thesis.tex"}) {
    std::ofstream(own / name) << "years";
  }
  std::ofstream(scratch.path / "elsewhere") << "years";
  fs::create_symlink(scratch.path / "elsewhere", own / "gradients.0");
  fs::permissions(own, fs::perms::owner_all);
  RankFolder::open(scratch.path, 0).reset();
  EXPECT_FALSE(fs::exists(own / "optimizer_states.0"));
  EXPECT_FALSE(fs::exists(own / "modules_as_they_are_built.3"));
  for (const char* name :
       {"optimizer_states.x", "states.1", "thesis.tex", "parameters.1/below/thesis.tex", "gradients.0"}) {
    EXPECT_EQ(read_file(own / name), "years") << name;
  }
}

TEST(RankFolderTest, AFolderThatOthersMayWriteToIsRefused) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  fs::create_directory(scratch.path / "trireme.rank0");
  std::ofstream(scratch.path / "trireme.rank0" / "optimizer_states.0") << "x";
  fs::permissions(scratch.path / "trireme.rank0", fs::perms(0770));
  EXPECT_THAT(refusal(scratch.path, 0), HasSubstr("may be written to by other users"));
  fs::permissions(scratch.path / "trireme.rank0", fs::perms(0755));
  fs::permissions(scratch.path, fs::perms(0777));
  {
    const test::OtherUser user;
    if (!user.exists()) {
      GTEST_SKIP() << "no other user can be had";
    }
    if (::geteuid() != ::getuid()) { // this was root before
      EXPECT_THAT(refusal(scratch.path, 0), HasSubstr("belongs to another user (0)"));
    }
  }
  EXPECT_EQ(read_file(scratch.path / "trireme.rank0" / "optimizer_states.0"), "x");
}

} // namespace
} // namespace trireme::offload
