#pragma once

#include "commands.h"

namespace trireme::tools {

/// `trireme bench tokenizer`.
int bench_tokenizer(const BenchTokenizerCommand& command);

} // namespace trireme::tools
