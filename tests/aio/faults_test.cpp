// Every call to the system fails once, for every reason that it may have: right bytes or a clear error, and always an end. strace lets them fail.
#include <tests/aio/aio_fixture.h>
#include <tests/support/command.h>

#include <algorithm>
#include <map>

namespace trireme::aio {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using test::run_command;

struct Outcome {
  int status;
  std::string said;
};

class FaultsTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto [status, said] = run_command("strace -f -qq -o /dev/null -e inject=pread64:error=EINTR:when=1 true");
    if (status != 0) {
      GTEST_SKIP() << "strace cannot be used here: " << said;
    }
  }
  /// "wrong" is a status of its own; 124: it did not end.
  Outcome run(const std::string& engine, const std::string& cached, const std::string& strace) const {
    const auto [status, said] = run_command(concat("ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 TRIREME_LOG=warning timeout 120 strace -f -qq -o ", log().string(), ' ', strace, ' ', AIO_PROGRAM, ' ',
                                                   folder_.path.string(), ' ', engine, ' ', cached));
    return {status, said};
  }
  /// Calls of `call` before the program's first own line, and after it.
  std::pair<int, int> calls(const std::string& engine, const std::string& cached, const std::string& call) const {
    const Outcome outcome = run(engine, cached, concat("-e trace=write,", call));
    EXPECT_EQ(outcome.status, 0) << outcome.said;
    EXPECT_THAT(outcome.said, HasSubstr(engine + " ok"));
    std::ifstream lines(log());
    int before = 0;
    int after = 0;
    bool begun = false;
    for (std::string line; std::getline(lines, line);) {
      begun = begun || line.find("write(1, \"begin") != std::string::npos;
      if (line.find(' ' + call + '(') != std::string::npos) {
        ++(begun ? after : before);
      }
    }
    return {before, after};
  }
  std::filesystem::path log() const {
    return folder_.path / "strace";
  }
  std::string file() const {
    return (folder_.path / "file").string();
  }

  const ScratchFolder folder_{make_scratch_folder("trireme-aio")};
};

/// Each call after the program has begun fails once, and then all of them from there on. `expect` looks at what comes of it.
template <typename Expect>
int for_each_fault(const FaultsTest&, const std::pair<int, int>& calls, const std::vector<std::string>& codes, const std::string& call, const Expect& expect) {
  int count = 0;
  for (const std::string& code : codes) {
    for (int i = 1; i <= calls.second; ++i) {
      for (const char* many : {"", "+"}) {
        if (*many != '\0' && i > 1) {
          continue;
        }
        SCOPED_TRACE(concat(call, " ", i, many, " ", code));
        expect(concat("-e trace=", call, " -e inject=", call, ":error=", code, ":when=", calls.first + i, many), code);
        ++count;
      }
    }
  }
  return count;
}

const std::map<std::string, std::string> kReasons = {{"EIO", "Input/output error"}, {"ENOSPC", "No space left on device"}, {"EDQUOT", "Disk quota exceeded"}, {"EACCES", "Permission denied"},
                                                     {"EMFILE", "Too many open files"}, {"EINVAL", "Invalid argument"}};

// What threads transfer: an error is told with the operation, the file, the place and the free space, and the others end well.
TEST_F(FaultsTest, OfTransfersAreTold) {
  for (const std::string cached : {"direct", "cached"}) {
    for (const auto& [call, word] : std::map<std::string, std::string>{{"pread64", "read"}, {"pwrite64", "write"}}) {
      const auto found = calls("threads", cached, call);
      EXPECT_GE(found.second, 9) << call;
      const int count = for_each_fault(*this, found, {"EIO", "ENOSPC"}, call, [&, &call = call, &word = word](const std::string& fault, const std::string& code) {
        const Outcome outcome = run("threads", cached, fault);
        // The read that finds out whether transfers are direct may fail: then the ones behind it say why.
        const bool is_trial = outcome.status == 0 && call == "pread64" && outcome.said.find("ok") != std::string::npos;
        EXPECT_TRUE(outcome.status == 1 || is_trial) << outcome.said;
        if (outcome.status == 1) {
          EXPECT_THAT(outcome.said, HasSubstr(concat("[aio] cannot ", word, " 16384 bytes at offset ")));
          EXPECT_THAT(outcome.said, HasSubstr(concat(" of ", file(), ": ", kReasons.at(code), ", ")));
          EXPECT_THAT(outcome.said, HasSubstr(concat(" are free in ", folder_.path.string())));
          EXPECT_THAT(outcome.said, HasSubstr("threads not all"));
        }
      });
      EXPECT_GE(count, 18);
    }
  }
}

TEST_F(FaultsTest, ThatPassAreNotSeen) {
  for (const std::string call : {"pread64", "pwrite64"}) {
    const auto found = calls("threads", "direct", call);
    for (int i = 1; i <= found.second; ++i) {
      for (const char* code : {"EINTR", "EAGAIN"}) {
        SCOPED_TRACE(concat(call, ' ', i, ' ', code));
        const Outcome outcome = run("threads", "direct", concat("-e trace=", call, " -e inject=", call, ":error=", code, ":when=", found.first + i));
        EXPECT_EQ(outcome.status, 0) << outcome.said;
      }
    }
  }
}

// A call that says it moved less than a page of a direct transfer, whatever it did: all of it again.
TEST_F(FaultsTest, ShortCallsAreContinued) {
  const auto found = calls("threads", "direct", "pwrite64");
  for (const char* call : {"pread64", "pwrite64"}) {
    for (int i = 1; i <= found.second; ++i) {
      for (const int moved : {1, 512, 4095}) {
        SCOPED_TRACE(concat(call, ' ', i, ' ', moved));
        const Outcome outcome = run("threads", "direct", concat("-e trace=", call, " -e inject=", call, ":retval=", moved, ":when=", found.first + i));
        EXPECT_EQ(outcome.status, 0) << outcome.said;
      }
    }
  }
}

TEST_F(FaultsTest, OfFilesAreTold) {
  const std::map<std::string, std::vector<std::string>> codes = {{"openat", {"EMFILE", "EACCES"}}, {"fallocate", {"ENOSPC", "EDQUOT", "EIO"}}, {"fdatasync", {"EIO", "ENOSPC"}}};
  for (const auto& [call, reasons] : codes) {
    const auto found = calls("threads", "cached", call);
    ASSERT_GE(found.second, 1) << call;
    for_each_fault(*this, found, reasons, call, [&](const std::string& fault, const std::string& code) {
      const Outcome outcome = run("threads", "cached", fault);
      // A file that may not be written is opened to be read: then it is the write that fails.
      const bool only_read = code == "EACCES" && outcome.said.find("Bad file descriptor") != std::string::npos;
      EXPECT_EQ(outcome.status, 1) << outcome.said;
      EXPECT_THAT(outcome.said, AnyOf(HasSubstr("cannot make a file of 147 kB for "), HasSubstr("cannot open "), HasSubstr("cannot reserve 147 kB for "), HasSubstr("cannot sync "), HasSubstr("cannot write ")));
      EXPECT_THAT(outcome.said, HasSubstr(file()));
      EXPECT_TRUE(only_read || outcome.said.find(kReasons.at(code)) != std::string::npos) << outcome.said;
    });
  }
}

// Where the file system cannot reserve, the file gets its size, if there is room.
TEST_F(FaultsTest, ReservationsThatTheFileSystemDoesNotHave) {
  const auto found = calls("threads", "direct", "fallocate");
  EXPECT_EQ(run("threads", "direct", concat("-e inject=fallocate:error=EOPNOTSUPP:when=", found.first + 1)).status, 0);
  EXPECT_EQ(std::filesystem::file_size(file()), 36 * static_cast<uintmax_t>(kPage));
}

// Where direct transfers are refused when they are tried, the page cache is used.
TEST_F(FaultsTest, DirectTransfersThatAreRefused) {
  const auto found = calls("threads", "direct", "pread64");
  const Outcome outcome = run("threads", "direct", concat("-e inject=pread64:error=EINVAL:when=", found.first + 1, " -e trace=pread64"));
  EXPECT_EQ(outcome.status, 0) << outcome.said;
}

// Whatever io_uring refuses, the bytes are right: threads begin or go on.
TEST_F(FaultsTest, OfIoUringChangeNoByte) {
  if (std::string(Transfers().engine()) != "io_uring") {
    GTEST_SKIP() << "there is no io_uring here";
  }
  const std::map<std::string, std::vector<std::string>> codes = {
      {"io_uring_setup", {"ENOSYS", "EPERM", "ENOMEM"}}, {"eventfd2", {"EMFILE"}}, {"io_uring_register", {"EINVAL", "ENOMEM"}}, {"io_uring_enter", {"EIO", "EBADF", "ENOMEM", "EINTR", "EAGAIN", "EBUSY"}}};
  for (const auto& [call, reasons] : codes) {
    const auto found = calls("io_uring", "direct", call);
    ASSERT_GE(found.second, 1) << call;
    const int count = for_each_fault(*this, found, reasons, call, [&, &call = call](const std::string& fault, const std::string& code) {
      const Outcome outcome = run("io_uring", "direct", fault);
      EXPECT_EQ(outcome.status, 0) << outcome.said;
      EXPECT_THAT(outcome.said, HasSubstr(" ok\n"));
      if (call == "io_uring_setup" || call == "eventfd2") {
        EXPECT_THAT(outcome.said, HasSubstr("threads ok"));
      }
      if (call == "io_uring_enter" && (code == "EIO" || code == "EBADF")) {
        EXPECT_THAT(outcome.said, HasSubstr("one thread transfers from now on"));
      }
    });
    EXPECT_GE(count, 2) << call;
  }
}

} // namespace
} // namespace trireme::aio
