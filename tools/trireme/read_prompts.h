#pragma once

#include "commands.h"

#include <trireme/comm/group.h>

#include <string>
#include <vector>

namespace trireme::tools {

/// The prompts of rank 0, on every rank: --prompt, or the lines of --prompts that are not blank. Rank 0 alone reads the
/// file, which may be its standard input, however long that takes. Collective. Errors: InputError on every rank for a
/// file that cannot be read or has no prompts.
std::vector<std::string> read_prompts(const GenerateCommand& command, const comm::Group& ranks);

} // namespace trireme::tools
