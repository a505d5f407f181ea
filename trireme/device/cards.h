#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::device {

/// One GPU as CUDA describes it.
struct Card {
  std::string name;
  int64_t memory_bytes = 0;
  /// Compute capability, e.g. 9.0.
  int major = 0;
  int minor = 0;
  /// Its place on the bus, "0000:3B:00.0"; "" if unknown.
  std::string pci = "";
};

struct Cards {
  /// "CUDA 13.0, driver 580.65.06"; "" without a driver.
  std::string driver;
  /// In the order of their numbers, after CUDA_VISIBLE_DEVICES.
  std::vector<Card> cards;
};

/// The GPUs of this machine; empty in a build without CUDA. Never throws.
Cards cuda_cards() noexcept;

/// Whether this build can query CUDA.
bool knows_cuda() noexcept;

} // namespace trireme::device
