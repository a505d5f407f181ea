#pragma once

#include <trireme/base/error.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::data {

/// The result of a finished program.
struct CommandResult {
  /// The exit status, or 128 + the signal that ended it.
  int exit_code = 0;
  std::string out;
  std::string err;
};

/// The program is not installed (not in PATH, or not executable).
class CommandMissing : public Error {
 public:
  using Error::Error;
};

/// Runs `arguments[0]`, found in PATH, inside `folder` and waits for its end. Uses no shell: arguments are passed
/// unchanged. Standard input is empty; both outputs are returned. Errors: CommandMissing; Error when the system refuses
/// a pipe or a process.
CommandResult run_command(const std::vector<std::string>& arguments, const std::filesystem::path& folder);

} // namespace trireme::data
