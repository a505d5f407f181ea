#pragma once

#include <trireme/train/commands.h>
#include <trireme/train/program.h>

namespace trireme::train {

/// `trireme estimate`: memory per rank and bytes sent, as formulas and numbers; with --measure beside a run's
/// measurements. Returns the exit code.
int show_estimate(const EstimateCommand& command, const Program& program);

} // namespace trireme::train
