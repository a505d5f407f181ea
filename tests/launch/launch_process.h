#pragma once

#include <trireme/launch/launcher.h>

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme::launch {

/// True as soon as `condition` is; false when it is not within the time.
bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds within = std::chrono::seconds(60));

/// Runs (not: is a zombie).
bool is_running(pid_t pid);

/// launch::run in a process of its own, with stdout and stderr in files. The process dies with the object.
class LaunchProcess {
 public:
  /// `before` runs in that process first.
  LaunchProcess(const LaunchOptions& options, const std::filesystem::path& folder,
                const std::function<void()>& before = {});
  ~LaunchProcess();
  LaunchProcess(const LaunchProcess&) = delete;
  LaunchProcess& operator=(const LaunchProcess&) = delete;

  pid_t pid() const { return pid_; }
  /// The exit code; 128 + signal; -1 when it does not end within 60 s.
  int wait();
  std::string out() const;
  std::string err() const;

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
  int exit_code_ = -1;
  std::filesystem::path folder_;
};

/// A folder for each test, with what the probes leave there. At the end nothing that left its pid may run.
class LaunchTest : public testing::Test {
 protected:
  LaunchTest();
  ~LaunchTest() override;

  /// Options for `ranks` probes doing `steps` (see probe_main.cpp), logs in folder()/logs.
  LaunchOptions probes(int ranks, const std::vector<std::string>& steps) const;
  const std::filesystem::path& folder() const { return folder_; }
  /// Waits until the file exists.
  testing::AssertionResult appears(const std::string& name) const;
  /// The pid that a probe left as pid.<kind>.<rank>.<restart>.
  pid_t pid_of(const std::string& name) const;
  std::vector<pid_t> all_pids() const;
  testing::AssertionResult nothing_runs() const;
  /// Removes what they left, for another round.
  void forget_pids() const;
  std::string log(int rank) const;
  void touch(const std::string& name) const;

 private:
  std::filesystem::path folder_;
};

} // namespace trireme::launch
