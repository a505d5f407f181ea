#pragma once

#include "commands.h"

namespace trireme::tools {

/// `trireme data tokenize`. Shows its progress on a terminal.
int tokenize_data(const DataTokenizeCommand& command);

} // namespace trireme::tools
