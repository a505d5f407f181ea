#pragma once

namespace trireme::horovod::elastic {

/// Ends a round that has no fault; run() catches it. No std::exception, so that a program's own handlers let it pass.
struct MembersChanged {};

/// Throws MembersChanged on all ranks, or on none, where processes have come or gone. Collective; does nothing outside
/// of an elastic run().
void end_round_if_changed();

} // namespace trireme::horovod::elastic
