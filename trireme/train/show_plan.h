#pragma once

#include <trireme/train/commands.h>
#include <trireme/train/program.h>

namespace trireme::train {

/// Prints the best layouts of a run on a described cluster, or on this machine after measuring it. Returns the exit
/// status: 1 when no layout fits. Errors: InputError for a wrong run file or description, and for models other than
/// gpt.
int show_plan(const PlanCommand& command, const Program& program);

} // namespace trireme::train
