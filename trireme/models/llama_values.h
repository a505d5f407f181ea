#pragma once

#include <trireme/models/model_values.h>
#include <trireme/models/options.h>

namespace trireme::models {

/// Initial values of a Llama: those of options.init_from, or random ones from a generator per parameter, seeded by
/// (seed, name): matrices Normal(0, 0.02), biases 0, norms 1, as Hugging Face's transformers. Errors: those of
/// ModelValues; InputError for sizes that do not fit each other.
ModelValues llama_values(const LlamaOptions& options);

} // namespace trireme::models
