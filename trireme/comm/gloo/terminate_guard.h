#pragma once

#include <trireme/comm/gloo/gloo_pending.h>

namespace trireme::comm {

/// Turns the death of gloo's thread into errors of the operations under way.
///
/// When a peer sends more bytes than this rank expects (different sizes on two ranks), gloo
/// throws in its own thread, where nothing can catch it, and the whole process would end in
/// std::terminate without a word about ranks. This installs a terminate handler, once, that for
/// gloo's exceptions alone marks all groups as wedged, wakes their waiters and parks the thread
/// for ever: it may hold gloo's locks, so gloo must not be touched or destroyed any more. Any
/// other reason to terminate goes on to the handler that was there before.
void guard_gloo_thread(const std::shared_ptr<GlooShared>& shared);

} // namespace trireme::comm
