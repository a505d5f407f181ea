// The main() of the test programs: each test runs in a process of its own, forked from this one. libtorch is loaded
// once instead of once for each test (half a second), and what a test leaves behind (threads of OpenMP, environment
// variables, a crash, a hang) ends with it. A filter without * and ? runs its tests in this very process, for debuggers
// and mpirun.
//   TRIREME_TEST_DEADLINE   seconds that one test may take (default 300; ten times as many with TRIREME_LONG_TESTS)
//   TRIREME_TEST_RESULTS    a file that gets one line for each test: "passed|failed|skipped PROGRAM/SUITE.TEST SECONDS
//   REASON"

#include <gmock/gmock.h>

#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

// Exit statuses of a test's process; one that calls exit(0) before its end has not passed.
constexpr int kPassed = 78;
constexpr int kFailed = 1;
constexpr int kSkipped = 77;

/// As GoogleTest's --gtest_filter: patterns with * and ?, separated by ':'; after a '-' those that are left out.
bool fits(const std::string& name, const std::string& filter) {
  const auto dash = filter.find('-');
  const auto fits_one_of = [&](const std::string& patterns) {
    std::istringstream list(patterns);
    for (std::string pattern; std::getline(list, pattern, ':');) {
      if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) {
        return true;
      }
    }
    return false;
  };
  const auto wanted = filter.substr(0, dash);
  return (wanted.empty() || fits_one_of(wanted)) &&
         (dash == std::string::npos || !fits_one_of(filter.substr(dash + 1)));
}

std::vector<std::string> tests_that_fit(const std::string& filter) {
  std::vector<std::string> names;
  const auto& all = *testing::UnitTest::GetInstance();
  for (int suite = 0; suite < all.total_test_suite_count(); ++suite) {
    const auto& tests = *all.GetTestSuite(suite);
    for (int test = 0; test < tests.total_test_count(); ++test) {
      const auto name = std::string(tests.name()) + "." + tests.GetTestInfo(test)->name();
      if (fits(name, filter)) {
        names.push_back(name);
      }
    }
  }
  return names;
}

/// Prints what fails, and why a test was skipped; the rest is said by the process that forked.
class Complaints : public testing::EmptyTestEventListener {
 public:
  explicit Complaints(int reason) : reason_(reason) {}
  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (part.passed()) {
      return;
    }
    std::cout << (part.file_name() == nullptr ? "unknown file" : part.file_name()) << ":" << part.line_number() << ": "
              << (part.skipped() ? "Skipped" : "Failure") << "\n"
              << part.message() << std::endl;
    if (part.skipped()) {
      const std::string message = part.message();
      [[maybe_unused]] const auto written = write(reason_, message.data(), message.size());
    }
  }

 private:
  int reason_;
};

/// Runs the test in this process, which was forked for it. Its exit status is the result.
[[noreturn]] void run_here(const std::string& name, int reason) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  GTEST_FLAG_SET(filter, name);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new Complaints(reason));
  const int failed = RUN_ALL_TESTS();
  const bool skipped = failed == 0 && testing::UnitTest::GetInstance()->skipped_test_count() > 0;
  const int status = failed != 0 ? kFailed : skipped ? kSkipped : kPassed;
#ifdef __SANITIZE_ADDRESS__
  std::exit(status); // leaks are looked for
#endif
  std::cout.flush();
  std::fflush(nullptr);
  _exit(status); // libtorch's end takes as long as a small test
}

/// Waits for the process, kills it after `seconds`; kPassed, kFailed or kSkipped.
int result_of(pid_t child, int seconds) {
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  pollfd ended{descriptor, POLLIN, 0};
  if (descriptor < 0) {
    std::perror("pidfd_open (no deadline)");
  } else if (poll(&ended, 1, seconds * 1000) == 0) {
    std::cout << "did not end in " << seconds << " s, killed" << std::endl;
    kill(child, SIGKILL);
  }
  close(descriptor);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    std::cout << "killed by signal " << WTERMSIG(status) << " (" << strsignal(WTERMSIG(status)) << ")" << std::endl;
    return kFailed;
  }
  const int code = WEXITSTATUS(status);
  if (code != kPassed && code != kFailed && code != kSkipped) {
    std::cout << "the test's process ended with exit status " << code << std::endl;
  }
  return code == kPassed || code == kSkipped ? code : kFailed;
}

std::string first_line_in(int descriptor) {
  std::string text(4096, '\0');
  const auto count = read(descriptor, text.data(), text.size());
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return text.substr(0, text.find('\n'));
}

void note_result(const char* file, const std::string& line) {
  const int descriptor = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor < 0 || write(descriptor, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    std::perror(file);
  }
  close(descriptor);
}

int run_each_in_its_process(const std::vector<std::string>& names, const std::string& program) {
  const char* deadline = std::getenv("TRIREME_TEST_DEADLINE");
  const char* results = std::getenv("TRIREME_TEST_RESULTS");
  const int seconds =
      (deadline == nullptr ? 300 : std::atoi(deadline)) * (std::getenv("TRIREME_LONG_TESTS") == nullptr ? 1 : 10);
  std::map<std::string, int> count;
  std::string failures;
  for (const auto& name : names) {
    std::cout << "[ RUN      ] " << name << std::endl;
    int reason[2];
    if (pipe2(reason, O_CLOEXEC | O_NONBLOCK) != 0) {
      std::perror("pipe");
      return 1;
    }
    const auto start = std::chrono::steady_clock::now();
    const pid_t child = fork();
    if (child == 0) {
      run_here(name, reason[1]);
    }
    const int result = child < 0 ? kFailed : result_of(child, seconds);
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::string state = result == kPassed ? "passed" : result == kSkipped ? "skipped" : "failed";
    ++count[state];
    std::ostringstream line;
    line << state << ' ' << program << '/' << name << ' ' << took << ' ' << first_line_in(reason[0]) << '\n';
    close(reason[0]);
    close(reason[1]);
    if (results != nullptr && *results != '\0') {
      note_result(results, line.str());
    }
    if (state == "failed") {
      failures += "failed: " + name + "\n";
    }
    std::cout << "[          ] " << state << " in " << took << " s" << std::endl;
  }
  // What ctest looks for: "0 passed, 0 failed, 3 skipped" is a suite that was skipped.
  std::cout << "[==========] " << count["passed"] << " passed, " << count["failed"] << " failed, " << count["skipped"]
            << " skipped\n"
            << failures;
  return failures.empty() ? 0 : kFailed;
}

} // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  ::setenv("TRIREME_DEVICE", "cpu", /*overwrite=*/0); // tests have more ranks than a machine has GPUs
  if (GTEST_FLAG_GET(list_tests)) {
    return RUN_ALL_TESTS();
  }
  const std::string filter = GTEST_FLAG_GET(filter);
  const auto names = tests_that_fit(filter);
  if (names.empty()) {
    std::cerr << "no test fits --gtest_filter=" << filter << "\n";
    return kFailed;
  }
  std::string made = testing::TempDir() + "trireme_made_XXXXXX";
  if (::mkdtemp(made.data()) == nullptr) {
    std::perror(made.c_str());
    return kFailed;
  }
  ::setenv("TRIREME_TEST_MADE", made.c_str(), /*overwrite=*/1); // made_once.h
  const std::string path = argv[0];
  const int result = filter.find_first_of("*?") == std::string::npos
                         ? RUN_ALL_TESTS()
                         : run_each_in_its_process(names, path.substr(path.rfind('/') + 1));
  std::error_code ignored;
  std::filesystem::remove_all(made, ignored);
  return result;
}
