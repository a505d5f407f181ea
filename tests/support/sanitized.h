#pragma once

namespace trireme::test {

#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

/// Compiled with a sanitizer that keeps memory of its own: what a process needs says nothing of the program.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kThreadSanitizer;
#endif

/// Whether the stack of a thread that is stuck can be taken. ThreadSanitizer keeps signals until the thread calls
/// something that it watches.
inline constexpr bool kTakesStacks = !kThreadSanitizer;

} // namespace trireme::test
