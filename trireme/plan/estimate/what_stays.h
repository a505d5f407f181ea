#pragma once

#include <trireme/plan/estimate/moves.h>

#include <string>
#include <vector>

namespace trireme::estimate {

/// One sentence on where masters, states, gradients and parameters of a rank are under offload, in bytes: "offload, a
/// rank: ...". Empty: nothing is moved.
std::string where_things_are(const Run& run, const Elsewhere& there);

/// What offload was asked to move and does not, and which key keeps it: a sentence each. For files also buffers that
/// hold all that is in them, so that files save no memory.
std::vector<std::string> what_stays(const Run& run, const Elsewhere& there);

} // namespace trireme::estimate
