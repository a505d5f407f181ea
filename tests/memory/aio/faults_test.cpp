// Every call to the system fails once, for every reason that it may have: right bytes or a clear error, and always an
// end. strace lets them fail.
#include <tests/memory/aio/aio_fixture.h>
#include <tests/support/command.h>

#include <algorithm>
#include <map>

namespace trireme::aio {
namespace {

using test::run_command;
using testing::AnyOf;
using testing::HasSubstr;

struct Outcome {
  int status;
  std::string said;
};

class FaultsTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto [status, said] = run_command("strace -f -qq -o /dev/null -e inject=pwrite64:error=EINTR:when=1 true");
    if (status != 0) {
      GTEST_SKIP() << "strace cannot be used here: " << said;
    }
  }
  /// Of the program under strace. Status 3: wrong bytes; 124: it did not end.
  Outcome run(const std::string& engine, const std::string& cached, const std::string& strace) const {
    std::filesystem::remove(file()); // one that is there is removed first, which takes a call more
    const auto [status, said] = run_command(
        concat("ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 TRIREME_LOG=warning timeout 120 strace -f -qq -o ",
               log().string(), ' ', strace, ' ', AIO_PROGRAM, ' ', folder_.path.string(), ' ', engine, ' ', cached));
    return {status, said};
  }
  /// strace's options that look at `call` alone, where it is about a file at this file alone: what the program does
  /// before its own first call is left alone.
  std::string trace(const std::string& call) const {
    const bool of_files = call != "eventfd2" && call.find("io_uring") == std::string::npos;
    return concat("-e trace=", call, of_files ? concat(" -P ", file()) : "");
  }
  /// The most that a thread calls `call` when all goes well: strace counts the calls of each thread.
  int calls(const std::string& engine, const std::string& cached, const std::string& call) const {
    const Outcome outcome = run(engine, cached, trace(call));
    EXPECT_EQ(outcome.status, 0) << outcome.said;
    EXPECT_THAT(outcome.said, HasSubstr(engine + " ok"));
    std::ifstream lines(log());
    std::map<std::string, int> count;
    for (std::string line; std::getline(lines, line);) {
      count[line.substr(0, line.find(' '))] += line.find(' ' + call + '(') != std::string::npos;
    }
    int most = 0;
    for (const auto& [thread, times] : count) {
      most = std::max(most, times);
    }
    return most;
  }
  std::string fault(const std::string& call, const std::string& what, const std::string& when) const {
    return concat(trace(call), " -e inject=", call, ':', what, ":when=", when);
  }
  /// Each call of a thread fails once, then all of them. `expect` looks at what comes of it; how often it did.
  template <typename Expect>
  int for_each_fault(int calls, const std::vector<std::string>& codes, const std::string& call,
                     const Expect& expect) const {
    int count = 0;
    for (const std::string& code : codes) {
      for (int i = 0; i <= calls; ++i) {
        const std::string when = i == 0 ? "1+" : std::to_string(i);
        SCOPED_TRACE(concat(call, " ", when, " ", code));
        expect(fault(call, "error=" + code, when), code);
        ++count;
      }
    }
    return count;
  }
  std::filesystem::path log() const { return folder_.path / "strace"; }
  std::string file() const { return (folder_.path / "file").string(); }

  const ScratchFolder folder_{make_scratch_folder("trireme-aio")};
};

const std::map<std::string, std::string> kReasons = {
    {"EIO", "Input/output error"},   {"ENOSPC", "No space left on device"}, {"EDQUOT", "Disk quota exceeded"},
    {"EACCES", "Permission denied"}, {"EMFILE", "Too many open files"},     {"EINVAL", "Invalid argument"}};

// What threads transfer: an error is told with the operation, the file, the place and the free space, and the others
// end well.
TEST_F(FaultsTest, OfTransfersAreTold) {
  for (const std::string cached : {"direct", "cached"}) {
    for (const auto& [call, word] : std::map<std::string, std::string>{{"pread64", "read"}, {"pwrite64", "write"}}) {
      const int most = calls("threads", cached, call);
      EXPECT_EQ(most, 9) << call;
      const int count = for_each_fault(
          most, {"EIO", "ENOSPC"}, call, [&, &word = word](const std::string& fault, const std::string& code) {
            const Outcome outcome = run("threads", cached, fault);
            EXPECT_EQ(outcome.status, 1) << outcome.said;
            EXPECT_THAT(outcome.said, HasSubstr(concat("[aio] cannot ", word, " 16384 bytes at offset ")));
            EXPECT_THAT(outcome.said, HasSubstr(concat(" of ", file(), ": ", kReasons.at(code), ", ")));
            EXPECT_THAT(outcome.said, HasSubstr(concat(" are free in ", folder_.path.string())));
            EXPECT_THAT(outcome.said, HasSubstr("threads not all")) << "it went on to its end";
          });
      EXPECT_EQ(count, 20);
    }
  }
}

TEST_F(FaultsTest, ThatPassAreNotSeen) {
  for (const std::string call : {"pread64", "pwrite64"}) {
    for (const char* code : {"EINTR", "EAGAIN"}) {
      for (const char* when : {"1", "5", "9", "2+3"}) {
        SCOPED_TRACE(concat(call, ' ', when, ' ', code));
        const Outcome outcome = run("threads", "direct", fault(call, concat("error=", code), when));
        EXPECT_EQ(outcome.status, 0) << outcome.said;
      }
    }
  }
}

// A call that says it moved less than a page of a direct transfer, whatever it did: all of it again.
TEST_F(FaultsTest, ShortCallsAreContinued) {
  for (const char* call : {"pread64", "pwrite64"}) {
    for (const char* when : {"1", "5", "9"}) {
      for (const int moved : {1, 4095}) {
        SCOPED_TRACE(concat(call, ' ', when, ' ', moved));
        const Outcome outcome = run("threads", "direct", fault(call, concat("retval=", moved), when));
        EXPECT_EQ(outcome.status, 0) << outcome.said;
      }
    }
  }
}

TEST_F(FaultsTest, OfFilesAreTold) {
  const std::map<std::string, std::vector<std::string>> codes = {
      {"openat", {"EMFILE", "EACCES"}}, {"fallocate", {"ENOSPC", "EDQUOT", "EIO"}}, {"fdatasync", {"EIO", "ENOSPC"}}};
  for (const auto& [call, reasons] : codes) {
    const int most = calls("threads", "cached", call);
    ASSERT_GE(most, 1) << call;
    for_each_fault(most, reasons, call, [&](const std::string& fault, const std::string& code) {
      const Outcome outcome = run("threads", "cached", fault);
      // A file that may not be written is opened to be read: then it is the write that fails.
      const bool only_read = code == "EACCES" && outcome.said.find("Bad file descriptor") != std::string::npos;
      EXPECT_EQ(outcome.status, 1) << outcome.said;
      EXPECT_THAT(outcome.said, AnyOf(HasSubstr("cannot make a file of 147 kB for "), HasSubstr("cannot open "),
                                      HasSubstr("cannot reserve 147 kB for "), HasSubstr("cannot sync "),
                                      HasSubstr("cannot write ")));
      EXPECT_THAT(outcome.said, HasSubstr(file()));
      EXPECT_TRUE(only_read || outcome.said.find(kReasons.at(code)) != std::string::npos) << outcome.said;
    });
  }
}

// Where the file system cannot reserve, the file gets its size, if there is room.
TEST_F(FaultsTest, ReservationsThatTheFileSystemDoesNotHave) {
  for (const char* code : {"EOPNOTSUPP", "ENOSYS"}) {
    const Outcome outcome = run("threads", "direct", fault("fallocate", concat("error=", code), "1"));
    EXPECT_EQ(outcome.status, 0) << outcome.said;
    EXPECT_EQ(std::filesystem::file_size(file()), 36 * static_cast<uintmax_t>(kPage));
  }
}

// Where direct transfers are refused when they are tried, or when the file is opened for them, the page cache is used.
TEST_F(FaultsTest, DirectTransfersThatAreRefused) {
  if (!File::create(folder_.path / "other", kPage).direct()) {
    GTEST_SKIP() << "there are no direct transfers here";
  }
  EXPECT_EQ(run("none", "direct", trace("pread64")).said, "direct\n");
  EXPECT_EQ(run("none", "direct", fault("pread64", "error=EINVAL", "2")).said, "cached\n")
      << "the first is of the file as it is made, the second as it is opened";
  EXPECT_EQ(run("none", "direct", fault("pread64", "error=EIO", "2")).said, "direct\n") << "who reads will see";
  EXPECT_EQ(run("none", "direct", fault("openat", "error=EINVAL", "4")).said, "cached\n");
}

// Whatever io_uring refuses, the bytes are right: threads begin or go on.
TEST_F(FaultsTest, OfIoUringChangeNoByte) {
  if (std::string(Transfers().engine()) != "io_uring") {
    GTEST_SKIP() << "there is no io_uring here";
  }
  const std::map<std::string, std::vector<std::string>> codes = {
      {"io_uring_setup", {"ENOSYS", "EPERM", "ENOMEM"}},
      {"eventfd2", {"EMFILE"}},
      {"io_uring_register", {"EINVAL", "ENOMEM"}},
      {"io_uring_enter", {"EIO", "EBADF", "ENOMEM", "EINTR", "EAGAIN", "EBUSY"}}};
  for (const auto& [call, reasons] : codes) {
    const int most = std::min(calls("io_uring", "direct", call), 12); // how often a thread enters is chance
    ASSERT_GE(most, 1) << call;
    for_each_fault(most, reasons, call, [&, &call = call](const std::string& fault, const std::string& code) {
      const Outcome outcome = run("io_uring", "direct", fault);
      EXPECT_EQ(outcome.status, 0) << outcome.said;
      EXPECT_THAT(outcome.said, HasSubstr(" ok\n"));
      if (call == "io_uring_setup" || call == "eventfd2") {
        EXPECT_THAT(outcome.said, HasSubstr("threads ok"));
      }
      if (call == "io_uring_enter" && (code == "EIO" || code == "EBADF") && fault.ends_with("=1")) {
        EXPECT_THAT(outcome.said, HasSubstr("continuing with one thread"));
      }
    });
  }
}

} // namespace
} // namespace trireme::aio
