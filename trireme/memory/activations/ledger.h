#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace trireme::activations {

/// Counts the bytes of activations in the memory of the model. Thread-safe.
class Ledger {
 public:
  void add(int64_t bytes) {
    const int64_t now = bytes_.fetch_add(bytes) + bytes;
    int64_t peak = peak_.load();
    while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
    }
  }
  void remove(int64_t bytes) { bytes_.fetch_sub(bytes); }
  int64_t bytes() const { return bytes_.load(); }
  /// The peak so far.
  int64_t peak() const { return peak_.load(); }
  void forget_peak() { peak_.store(bytes_.load()); }

 private:
  std::atomic<int64_t> bytes_ = 0;
  std::atomic<int64_t> peak_ = 0;
};

} // namespace trireme::activations
