#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

/// Injects faults, to test how a job handles them. docs/failures.md describes TRIREME_FAULT for users.
namespace trireme::fault {

enum class Phase : uint8_t { data, forward, backward, all_reduce, step, checkpoint, send, recv };

/// Left to the caller; kills, stops and sleeps are already done.
enum class Effect : uint8_t {
  none,
  nan,  ///< put a NaN into the tensor of this phase
  drop, ///< leave the operation out
};

/// Reads "rank=1,step=7,phase=all_reduce,kind=kill[,seconds=S][,attempt=0]", several separated by ';', and keeps
/// those for this rank and this start of the job (0: the first). Replaces earlier faults; "" removes them.
/// Errors: InputError naming the part that is wrong.
void arm(std::string_view text, int rank, int size, int attempt);
/// The same from TRIREME_FAULT and TORCHELASTIC_RESTART_COUNT. A worker of parameter servers (TRIREME_WORKER=w/W) is
/// rank w of W, although its own world has one rank.
void arm_from_environment(int rank, int size);

/// Sets the optimizer step that begins, counted from 1; 0: before training. If it is never called, each phase counts
/// its own occurrences from 1.
void set_step(int64_t step);

namespace detail {
inline constinit std::atomic<bool> armed{false};
Effect strike(Phase phase);
} // namespace detail

/// Marks a place for faults; each fault acts at most once per step. Cost: one load and branch without faults.
inline Effect at(Phase phase) {
  return detail::armed.load(std::memory_order_relaxed) ? detail::strike(phase) : Effect::none;
}

} // namespace trireme::fault
