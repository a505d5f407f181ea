#pragma once

#include <trireme/config/run_types.h>

#include <string>
#include <vector>

namespace trireme::train {

/// The program that trains: `trireme`, or one that calls train_main().
struct Program {
  /// Types of models and data in its run files; they must outlive it.
  const config::RunTypes& types = config::built_in_types();
  /// The words that start a rank; its command follows. Empty: trireme-rank beside this program.
  std::vector<std::string> rank = {};
};

/// Program::rank. Errors: Error when trireme-rank is missing.
std::vector<std::string> rank_words(const Program& program);

} // namespace trireme::train
