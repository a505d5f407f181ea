#pragma once

#include <trireme/config/run_file.h>

namespace trireme::config {

/// Checks a run with a gpt, llama or bert: sizes of the model against each other, the data and the ranks. Fills in the
/// vocabulary of the tokenizer "bytes".
void check_language(const JsonNode& root, RunConfig& run);

} // namespace trireme::config
