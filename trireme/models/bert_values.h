#pragma once

#include <trireme/models/model_values.h>
#include <trireme/models/options.h>

namespace trireme::models {

/// Initial values of a BERT: those of options.init_from, or random ones from a generator per parameter, seeded by
/// (seed, name): matrices Normal(0, 0.02), biases 0, norms 1. A classifier or pooler that init_from lacks is random;
/// heads that the model lacks are not read. Errors: those of ModelValues; InputError when heads do not divide hidden,
/// and for adapters of an init_from without pooler: it would be random, and is not saved with them.
ModelValues bert_values(const BertOptions& options);

} // namespace trireme::models
