#pragma once

#include "commands.h"

namespace trireme::tools {

/// `trireme tokenize`: from standard input to standard output, line by line.
int tokenize(const TokenizeCommand& command);

} // namespace trireme::tools
