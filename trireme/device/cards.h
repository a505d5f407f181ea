#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::device {

/// One GPU as CUDA describes it.
struct Card {
  std::string name;
  int64_t memory_bytes = 0;
  /// Of the compute capability: 9.0.
  int major = 0;
  int minor = 0;
};

struct Cards {
  /// "CUDA 13.0, driver 580.65.06"; "" where no driver is.
  std::string driver;
  /// In the order of their numbers, as CUDA_VISIBLE_DEVICES leaves them.
  std::vector<Card> cards;
};

/// The GPUs of this machine; nothing in a build without CUDA. Never throws.
Cards cuda_cards() noexcept;

/// This build can ask CUDA.
bool knows_cuda() noexcept;

} // namespace trireme::device
