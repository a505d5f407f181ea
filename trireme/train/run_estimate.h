#pragma once

#include <trireme/plan/estimate/memory.h>
#include <trireme/plan/estimate/verdict.h>
#include <trireme/plan/run_estimate.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::train {

/// Number of ranks: `asked`; 0: as in "parallel", with `replicas` for data-parallel "auto". Errors: InputError when it
/// does not fit the run's "parallel".
int64_t ranks_of(const config::RunConfig& run, const std::string& run_file, int64_t asked, int64_t replicas = 1);

/// Ranks that hold one copy of the model.
int64_t ranks_of_replica(const config::RunConfig& run);

/// The run with the device of the ranks' environment, for an estimate; "auto" is decided later. If there is one, it is
/// added to `overrides` and the file is read again.
config::RunConfig with_device(config::RunConfig run, const std::filesystem::path& run_file,
                              std::vector<std::string>& overrides, config::Files files, const config::RunTypes& types);

/// plan::describe(), with the vocabulary size of the run's tokenizer if the model uses it. Errors: InputError for a
/// missing tokenizer that is needed.
plan::RunEstimate describe_run(const config::RunConfig& run, int64_t ranks);

} // namespace trireme::train
