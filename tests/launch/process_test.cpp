#include "launch_process.h"

#include <trireme/base/error.h>
#include <trireme/launch/process.h>

#include <gmock/gmock.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class ProcessTest : public LaunchTest {};

std::string complaint(const std::string& program) {
  try {
    find_program(program);
  } catch (const InputError& error) {
    return error.what();
  }
  return "found";
}

TEST_F(ProcessTest, FindsProgramsAsAShellDoes) {
  EXPECT_EQ(find_program("sh").filename(), "sh");
  EXPECT_EQ(find_program("/bin/sh"), "/bin/sh");
  EXPECT_EQ(
      complaint("no-such-program"),
      "[launch] program not found: no-such-program. It is not in PATH; a program in this folder is ./no-such-program");
  EXPECT_THAT(complaint("./no-such-program"), HasSubstr("program not found: ./no-such-program"));
  EXPECT_THAT(complaint(""), HasSubstr("program not found"));
  EXPECT_THAT(complaint("/usr"), HasSubstr("/usr is a folder"));
}

TEST_F(ProcessTest, SaysWhenAFileMayNotBeRun) {
  touch("script");
  EXPECT_THAT(complaint(folder() / "script"), AllOf(HasSubstr("is not executable"), HasSubstr("chmod +x")));
}

TEST_F(ProcessTest, LooksInEveryFolderOfPath) {
  const std::string before = std::getenv("PATH");
  fs::create_directories(folder() / "first" / "tool"); // a folder of that name does not count
  fs::create_directories(folder() / "second");
  std::ofstream(folder() / "second" / "tool") << "#!/bin/sh\n";
  fs::permissions(folder() / "second" / "tool", fs::perms::owner_all);
  ::setenv("PATH", concat((folder() / "first").string(), ":", (folder() / "second").string()).c_str(), 1);
  const fs::path found = find_program("tool");
  ::setenv("PATH", before.c_str(), 1);
  EXPECT_EQ(found, folder() / "second" / "tool");
}

TEST_F(ProcessTest, SaysWhatTheKernelRefuses) {
  std::ofstream(folder() / "garbage") << "\x01\x02\x03 no program";
  std::ofstream(folder() / "orphan") << "#!/no/such/interpreter\n";
  for (const char* name : {"garbage", "orphan"}) {
    fs::permissions(folder() / name, fs::perms::owner_all);
    LaunchOptions options = probes(2, {});
    options.command = {folder() / name};
    LaunchProcess launch(options, folder());
    EXPECT_EQ(launch.wait(), 2) << name;
    EXPECT_THAT(launch.err(), HasSubstr(concat(name, " cannot be run: "))) << name;
  }
}

TEST_F(ProcessTest, PutsAWaitStatusIntoWords) {
  EXPECT_EQ(describe_end(3 << 8), "ended with exit code 3");
  EXPECT_EQ(exit_code_of(3 << 8), 3);
  EXPECT_EQ(describe_end(SIGKILL), "was killed by SIGKILL");
  EXPECT_EQ(exit_code_of(SIGKILL), 137);
  EXPECT_EQ(describe_end(SIGSEGV | 0x80), "was killed by SIGSEGV") << "with a core file";
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
  EXPECT_EQ(signal_name(50), "signal 50");
}

} // namespace
} // namespace trireme::launch
