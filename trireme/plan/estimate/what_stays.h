#pragma once

#include <trireme/plan/estimate/moves.h>

#include <string>
#include <vector>

namespace trireme::estimate {

/// One sentence with the bytes of masters, states, gradients and parameters of a rank under offload and where they are:
/// "offload, a rank: ...". Empty without offload.
std::string where_things_are(const Run& run, const Elsewhere& there);

/// One sentence for each thing that offload is configured to move and does not, with the key that keeps it; also for
/// buffers that hold everything in their files, so that files save no memory.
std::vector<std::string> what_stays(const Run& run, const Elsewhere& there);

} // namespace trireme::estimate
