#include "launch_process.h"

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

namespace trireme::launch {

namespace fs = std::filesystem;

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds within) {
  const auto deadline = std::chrono::steady_clock::now() + within;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

bool is_running(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const size_t end = text.rfind(')');
  return end != std::string::npos && text.size() > end + 2 && text[end + 2] != 'Z' && text[end + 2] != 'X';
}

LaunchProcess::LaunchProcess(const LaunchOptions& options, const fs::path& folder, const std::function<void()>& before)
    : folder_(folder) {
  const std::string out = folder / "stdout";
  const std::string err = folder / "stderr";
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600), 1);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600), 2);
    int code = 99;
    try {
      if (before) {
        before();
      }
      code = run(options);
    } catch (const Error& error) {
      std::cerr << error.what() << std::endl;
      code = error.exit_code();
    }
    ::_exit(code);
  }
}

LaunchProcess::~LaunchProcess() {
  if (!ended_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

int LaunchProcess::wait() {
  int status = 0;
  if (!ended_ && eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, std::chrono::seconds(60))) {
    ended_ = true;
    exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  return exit_code_;
}

std::string LaunchProcess::out() const {
  return fs::exists(folder_ / "stdout") ? read_file(folder_ / "stdout") : "";
}

std::string LaunchProcess::err() const {
  return fs::exists(folder_ / "stderr") ? read_file(folder_ / "stderr") : "";
}

LaunchTest::LaunchTest() {
  std::string path = fs::path(testing::TempDir()) / "trireme_launch_XXXXXX";
  folder_ = ::mkdtemp(path.data());
}

LaunchTest::~LaunchTest() {
  EXPECT_TRUE(nothing_runs());
  for (const pid_t pid : all_pids()) {
    if (is_running(pid)) {
      ::kill(pid, SIGKILL);
    }
  }
  fs::remove_all(folder_);
}

LaunchOptions LaunchTest::probes(int ranks, const std::vector<std::string>& steps) const {
  LaunchOptions options;
  options.ranks = ranks;
  options.command = {LAUNCH_PROBE};
  options.command.insert(options.command.end(), steps.begin(), steps.end());
  options.log_dir = folder_ / "logs";
  options.extra_env = {{"PROBE_DIR", folder_.string()}};
  return options;
}

testing::AssertionResult LaunchTest::appears(const std::string& name) const {
  if (eventually([&] { return fs::exists(folder_ / name); })) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << name << " did not appear";
}

pid_t LaunchTest::pid_of(const std::string& name) const {
  return static_cast<pid_t>(std::stol(read_file(folder_ / name)));
}

std::vector<pid_t> LaunchTest::all_pids() const {
  std::vector<pid_t> all;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("pid.") && !name.ends_with(".part")) {
      all.push_back(pid_of(name));
    }
  }
  return all;
}

testing::AssertionResult LaunchTest::nothing_runs() const {
  for (const pid_t pid : all_pids()) {
    if (is_running(pid)) {
      return testing::AssertionFailure() << "process " << pid << " still runs";
    }
  }
  return testing::AssertionSuccess();
}

void LaunchTest::forget_pids() const {
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().filename().string().starts_with("pid.")) {
      left.push_back(entry.path());
    }
  }
  for (const fs::path& path : left) {
    fs::remove(path);
  }
}

std::string LaunchTest::log(int rank) const {
  return read_file(folder_ / "logs" / concat("rank", rank, ".log"));
}

void LaunchTest::touch(const std::string& name) const {
  std::ofstream file(folder_ / name);
}

} // namespace trireme::launch
