#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace trireme::tools {

using Variables = std::vector<std::pair<std::string, std::string>>;

/// The result of a program that run_job() has started.
struct JobResult {
  /// The exit status; 128 + signal if one ended it; 127 if it could not be started.
  int status = 0;
  /// It exceeded the deadline and was asked to end.
  bool killed = false;
  std::string output;
  std::string errors;
};

/// Runs a program with these variables set, without input, and collects its output. After `deadline` it gets SIGTERM,
/// and SIGKILL two seconds later. Errors: Error when no process can be started.
JobResult run_job(const std::vector<std::string>& words, const Variables& variables,
                  std::chrono::milliseconds deadline);

/// Variables for mpirun that allow more ranks than cores, and root in a container; other MPIs than Open MPI ignore
/// them.
const Variables& under_mpirun();

} // namespace trireme::tools
