#include <tests/support/other_user.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <gmock/gmock.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <fstream>

namespace trireme {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  FileTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_file_", ::getpid())) {
    fs::create_directories(folder_);
  }
  ~FileTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(FileTest, WritesAndReplaces) {
  write_file_atomically(folder_ / "latest", "one");
  write_file_atomically(folder_ / "latest", "two");
  EXPECT_EQ(read_file(folder_ / "latest"), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(FileTest, WhatIsNewIsForThisUserOnly) {
  const mode_t before = ::umask(0);
  make_private_folders(folder_ / "a" / "b");
  EXPECT_EQ(fs::status(folder_ / "a").permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(folder_ / "a" / "b").permissions(), fs::perms::owner_all);
  const fs::path file = folder_ / "latest";
  write_file_atomically(file, "one");
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  fs::permissions(file, fs::perms(0644));
  fs::permissions(folder_ / "a", fs::perms(0750));
  write_file_atomically(file, "two");
  make_private_folders(folder_ / "a" / "c");
  EXPECT_EQ(fs::status(file).permissions(), fs::perms(0644)) << "as it was";
  EXPECT_EQ(fs::status(folder_ / "a").permissions(), fs::perms(0750)) << "as it was";
  write_file_atomically(folder_ / "shared", "for all", 0644);
  EXPECT_EQ(fs::status(folder_ / "shared").permissions(), fs::perms(0644));
  EXPECT_THROW(make_private_folders(file / "below"), fs::filesystem_error);
  std::error_code reason;
  make_private_folders("/sys/trireme/below", reason); // where nobody may make folders
  EXPECT_TRUE(reason && reason != std::errc::no_such_file_or_directory) << reason.message();
  ::umask(before);
}

TEST_F(FileTest, ALinkUnderTheTemporaryNameIsNotFollowed) {
  const fs::path file = folder_ / "latest";
  std::ofstream(folder_ / "precious") << "years";
  fs::create_symlink(folder_ / "precious", temporary_name(file));
  write_file_atomically(file, "new");
  EXPECT_EQ(read_file(file), "new");
  EXPECT_FALSE(fs::is_symlink(file));
  EXPECT_EQ(read_file(folder_ / "precious"), "years");

  fs::create_symlink(folder_ / "precious", temporary_name(file));
  check_writable(file);
  EXPECT_EQ(read_file(folder_ / "precious"), "years");

  std::ofstream(temporary_name(file)) << "left by a killed process of this number";
  write_file_atomically(file, "newer");
  EXPECT_EQ(read_file(file), "newer");

  fs::permissions(folder_ / "precious", fs::perms(0666));
  fs::create_symlink(folder_ / "precious", folder_ / "link");
  write_file_atomically(folder_ / "link", "private");
  EXPECT_EQ(fs::status(folder_ / "link").permissions(), fs::perms(0600)) << "not the mode of what the link led to";
  EXPECT_EQ(read_file(folder_ / "precious"), "years");

  fs::create_directory(temporary_name(file));
  EXPECT_THROW(write_file_atomically(file, "newest"), Error);
  EXPECT_EQ(read_file(file), "newer");
}

TEST_F(FileTest, MissingFileIsTheUsersInput) {
  EXPECT_THROW(read_file(folder_ / "absent"), InputError);
  EXPECT_THROW(read_file(folder_), InputError);
}

TEST_F(FileTest, AScratchFolderGoesAwayWithWhatIsInIt) {
  fs::path made;
  {
    const ScratchFolder scratch(make_scratch_folder("run", folder_ / "new"));
    made = scratch.path;
    EXPECT_EQ(made.parent_path(), folder_ / "new");
    EXPECT_EQ(fs::status(made).permissions(), fs::perms::owner_all);
    std::ofstream(made / "file") << "x";
  }
  EXPECT_FALSE(is_there(made));
  std::ofstream(folder_ / "file") << "x";
  try {
    make_scratch_folder("run", folder_ / "file", "Choose another.");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("cannot make a folder in"), testing::HasSubstr("Choose another.")));
  }
  EXPECT_THROW(is_there(folder_ / std::string(5000, 'x')), InputError);
}

TEST_F(FileTest, WhatCannotBeWrittenIsKnownBefore) {
  const auto refusal = [](const fs::path& path) -> std::string {
    try {
      check_writable(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  write_file_atomically(folder_ / "latest", "old");
  EXPECT_EQ(refusal(folder_ / "latest"), "");
  EXPECT_EQ(refusal(folder_ / "new"), "");
  EXPECT_EQ(read_file(folder_ / "latest"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1) << "looking leaves nothing";
  EXPECT_THAT(refusal(folder_),
              testing::AllOf(testing::HasSubstr("cannot create"), testing::HasSubstr("Is a directory")));
  EXPECT_THAT(refusal(folder_ / "absent" / "new"),
              testing::AllOf(testing::HasSubstr("absent/new"), testing::HasSubstr("No such file or directory")));

  const test::OtherUser user; // root may write everywhere
  if (!user.exists()) {
    GTEST_SKIP() << "no other user can be had";
  }
  const ScratchFolder closed(make_scratch_folder("trireme_closed"));
  write_file_atomically(closed.path / "latest", "old");
  fs::permissions(closed.path, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(refusal(closed.path / "latest"), testing::AllOf(testing::HasSubstr((closed.path / "latest").string()),
                                                              testing::HasSubstr("Permission denied")))
      << "writing puts a new file in its place";
  fs::permissions(closed.path, fs::perms::owner_all);
  EXPECT_EQ(refusal(closed.path / "latest"), "");
}

TEST_F(FileTest, AFailedWriteLeavesTheOldContent) {
  write_file_atomically(folder_ / "latest", "old");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit tight = before;
  tight.rlim_cur = 1000;
  setrlimit(RLIMIT_FSIZE, &tight);
  std::string message;
  try {
    write_file_atomically(folder_ / "latest", std::string(5000, 'x'));
  } catch (const Error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(message, testing::AllOf(testing::HasSubstr("latest"), testing::HasSubstr("needs 5.00 kB")));
  EXPECT_EQ(read_file(folder_ / "latest"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(FileTest, WhatAKilledProcessLeftIsRemovedAndNothingElse) {
  write_file_atomically(folder_ / "latest", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_DFL);
    const rlimit tight{1000, 1000};
    setrlimit(RLIMIT_FSIZE, &tight);
    write_file_atomically(folder_ / "latest", std::string(5000, 'x')); // ends here
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  const std::string left = concat(".latest.tmp.", child);
  ASSERT_TRUE(is_there(folder_ / left));
  const std::vector<std::string> others = {".latest.tmp.backup", ".latest.tmp.", ".latest.tmp.1x",
                                           ".latest2.tmp.1",     "latest.tmp.1", "latest"};
  for (const std::string& other : others) {
    std::ofstream(folder_ / other, std::ios::app) << "precious";
  }
  remove_unfinished(folder_ / "latest");
  EXPECT_FALSE(is_there(folder_ / left));
  for (const std::string& other : others) {
    EXPECT_TRUE(is_there(folder_ / other)) << other;
  }
  remove_unfinished(folder_ / "absent" / "latest"); // nothing to do
  // One that another process may be writing.
  const std::filesystem::path young = folder_ / ".latest.tmp.2", old = folder_ / ".latest.tmp.3";
  std::ofstream(young) << "half";
  std::ofstream(old) << "half";
  std::filesystem::last_write_time(old, std::filesystem::file_time_type::clock::now() - std::chrono::seconds(61));
  remove_unfinished(folder_ / "latest", std::chrono::seconds(60));
  EXPECT_TRUE(is_there(young));
  EXPECT_FALSE(is_there(old));
}

} // namespace
} // namespace trireme
