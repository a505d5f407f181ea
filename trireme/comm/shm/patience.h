#pragma once

#include <chrono>

namespace trireme::comm::shm {

/// What a rank does between two looks at an operation while it has nothing to do for it.
///
/// To be woken up takes longer than most waits (tens of microseconds where the core has gone to sleep too), so a rank stays awake for a
/// while: with a core of its own it first looks again at once, otherwise it lets the other ranks of its core come first. A yield that
/// takes long has been answered by somebody who computes: then it sleeps at once, because a sleeper gets its core back when it is
/// rung, and who yields again only after that one's whole time slice.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Step { look, yield, sleep };

  /// About 20 us of looking.
  static constexpr int kLooks = 400;
  static constexpr std::chrono::microseconds kAwake{100};

  /// `crowded`: there are more ranks than cores.
  explicit Patience(bool crowded) : looks_(crowded ? 0 : kLooks) {}

  /// There was something to do: begins anew.
  void worked() {
    idle_ = 0;
  }
  /// What to do now that there was nothing. `now()` is asked once the looks are used up.
  template <typename Now>
  Step next(const Now& now) {
    if (idle_ < looks_) {
      ++idle_;
      return Step::look;
    }
    if (idle_ == looks_) {
      ++idle_;
      until_ = now() + kAwake;
      return Step::yield;
    }
    return now() < until_ ? Step::yield : Step::sleep;
  }

 private:
  int looks_;
  int idle_ = 0;
  Clock::time_point until_;
};

} // namespace trireme::comm::shm
