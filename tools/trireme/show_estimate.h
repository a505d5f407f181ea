#pragma once

#include "commands.h"

namespace trireme::tools {

/// `trireme estimate`: memory of each rank and bytes on the wire, as formulas and numbers; with --measure beside what a
/// run needed. Returns the exit code.
int show_estimate(const EstimateCommand& command);

} // namespace trireme::tools
