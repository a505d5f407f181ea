#pragma once

#include <trireme/comm/gloo/gloo_pending.h>

namespace trireme::comm {

/// Converts the death of gloo's thread into errors of the operations in progress.
///
/// If a peer sends more bytes than this rank expects (different sizes on two ranks), gloo throws
/// in its own thread, where no caller can catch it. Then std::terminate would end the process
/// without naming ranks. This installs a terminate handler, once. For gloo's exceptions only, it
/// marks all groups as wedged, wakes their waiters and parks the thread forever: it may hold
/// gloo's locks, so gloo must not be used or destroyed any more. Other exceptions go to the
/// previous handler.
void guard_gloo_thread(const std::shared_ptr<GlooShared>& shared);

} // namespace trireme::comm
