#pragma once

namespace trireme {

/// Cores this process may run on (affinity mask), at least 1.
int usable_cores();

} // namespace trireme
