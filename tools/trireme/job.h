#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace trireme::tools {

using Variables = std::vector<std::pair<std::string, std::string>>;

/// What a program left behind that run_job() has started.
struct JobResult {
  /// The exit status; 128 + signal where one ended it; 127 where it could not be started.
  int status = 0;
  /// It ran longer than it may, and was told to end.
  bool killed = false;
  std::string output;
  std::string errors;
};

/// Runs a program with these variables set, without input, and collects its output. After `deadline` it gets SIGTERM,
/// and SIGKILL two seconds later. Errors: Error when no process can be started.
JobResult run_job(const std::vector<std::string>& words, const Variables& variables,
                  std::chrono::milliseconds deadline);

/// Variables for mpirun that let it start more ranks than cores, and as root in a container; other MPIs than Open MPI
/// ignore them.
const Variables& under_mpirun();

} // namespace trireme::tools
