#pragma once

#include <trireme/plan/estimate/model.h>
#include <trireme/plan/estimate/run.h>

#include <iterator>

namespace trireme::estimate {

/// A GPT in one piece on the axes that `conditions` name.
inline Run gpt_run(const models::GptOptions& shape, const Conditions& conditions) {
  Run run;
  run.model = gpt(shape, conditions);
  run.bounds = {0, std::ssize(run.model.layers)};
  run.tensor_ranks = conditions.tensor_ranks;
  run.context_ranks = conditions.context_ranks;
  run.sequence_parallel = conditions.sequence_parallel;
  return run;
}

} // namespace trireme::estimate
