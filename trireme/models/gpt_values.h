#pragma once

#include <trireme/models/model_values.h>
#include <trireme/models/options.h>

namespace trireme::models {

/// Initial values of a GPT: those of options.init_from, or random ones from a generator per parameter, seeded by (seed,
/// name): Normal(0, 0.02), residual projections times 1/sqrt(2 layers), as GPT-2. Errors: those of ModelValues;
/// InputError when heads do not divide hidden.
ModelValues gpt_values(const GptOptions& options);

} // namespace trireme::models
