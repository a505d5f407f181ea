#pragma once

#include <trireme/base/clock.h>

#include <cstdint>

namespace trireme::simulation {

/// Numbers that follow from a seed alone, the same on every machine (splitmix64, Steele et al. 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// From 0 to `bound` - 1.
  int64_t below(int64_t bound) { return static_cast<int64_t>(next() % static_cast<uint64_t>(bound)); }
  bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1.0p-53 < probability; }
  Clock::duration between(Clock::duration least, Clock::duration most) {
    return least + Clock::duration(below((most - least).count() + 1));
  }

 private:
  uint64_t state_;
};

} // namespace trireme::simulation
