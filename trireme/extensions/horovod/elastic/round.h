#pragma once

namespace trireme::horovod::elastic {

/// Ends a round without a failure; run() catches it. Not a std::exception, so that a program's own handlers let it
/// pass.
struct MembersChanged {};

/// Throws MembersChanged on all ranks if processes have joined or left, otherwise on none. Collective; does nothing
/// outside an elastic run().
void end_round_if_changed();

} // namespace trireme::horovod::elastic
