#pragma once

#include <trireme/config/run_file.h>
#include <trireme/plan/estimate/run.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::plan {

/// A run for its memory estimate, and what the estimate assumes if the run file does not say enough.
struct RunEstimate {
  estimate::Run run;
  std::vector<std::string> notes;
};

/// The part of a run that follows from an engine's configuration: types, optimizer, ZeRO, buckets, offload. A model's
/// shape and the ranks are the caller's.
void set_engine(const config::EngineConfig& engine, estimate::Run& out);

/// A note on data files that do not exist and would count in an estimate (Files::may_be_absent); empty: there are none.
std::string note_on_absent_data(const config::RunConfig& run);

/// Describes the run on `ranks` ranks. `vocab_size` is used for a model that takes its tokenizer's.
/// Errors: InputError for ranks, batch sizes and pipeline stages that do not fit each other, and for a vocabulary of
/// unknown size.
RunEstimate describe(const config::RunConfig& run, int64_t ranks, int64_t vocab_size = 0);

} // namespace trireme::plan
