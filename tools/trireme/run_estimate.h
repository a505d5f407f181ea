#pragma once

#include <trireme/config/run_estimate.h>
#include <trireme/estimate/memory.h>
#include <trireme/estimate/verdict.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::tools {

/// The ranks that run: `asked` (0: what "parallel" asks for, data-parallel replicas that "auto" leaves open being
/// `replicas`). Errors: InputError when they do not fit the run's "parallel".
int64_t ranks_of(const config::RunConfig& run, const std::string& run_file, int64_t asked, int64_t replicas = 1);

/// Ranks that hold one copy of the model.
int64_t ranks_of_replica(const config::RunConfig& run);

/// The run with the device that ranks take from the environment, for an estimate: what "auto" finds is known later.
/// Only if there is one, it is added to `overrides` and the file is read again.
config::RunConfig with_device(config::RunConfig run, const std::filesystem::path& run_file,
                              std::vector<std::string>& overrides, config::Files files = config::Files::must_exist);

/// config::describe(), with the vocabulary of the run's tokenizer where the model takes that.
/// Errors: InputError for a tokenizer that does not exist and is needed.
config::RunEstimate describe_run(const config::RunConfig& run, int64_t ranks);

} // namespace trireme::tools
