#pragma once

#include <trireme/config/run_file.h>
#include <trireme/plan/estimate/run.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::plan {

/// A run for its memory estimate, and the assumptions that replace what the run file leaves open.
struct RunEstimate {
  estimate::Run run;
  /// Elements of the whole model and of its trained parameters; run.model is a tensor rank's.
  int64_t parameters = 0;
  int64_t trained = 0;
  std::vector<std::string> notes;
};

/// Sets what an engine's configuration determines: types, optimizer, ZeRO, buckets, offload. The caller sets the
/// model's shape and the ranks.
void set_engine(const config::EngineConfig& engine, estimate::Run& out);

/// False for a program's model type that does not describe its layers: nothing can be estimated.
bool can_describe(const config::RunConfig& run);

/// A note on missing data files that would count in an estimate (Files::may_be_absent); empty: none is missing.
std::string note_on_absent_data(const config::RunConfig& run);

/// Describes the run on `ranks` ranks. `vocab_size` is used for a model that takes its tokenizer's.
/// Errors: InputError for ranks, batch sizes and pipeline stages that do not fit each other, for a vocabulary of
/// unknown size, and unless can_describe().
RunEstimate describe(const config::RunConfig& run, int64_t ranks, int64_t vocab_size = 0);

} // namespace trireme::plan
