#pragma once

#include <trireme/comm/compressed_sizes.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace trireme::comm {

/// Elements [begin, end) of a tensor that are compressed independently: with their own scale, or their own number of
/// largest elements. Elements in no stretch are not sent.
struct Stretch {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t count() const { return end - begin; }
  bool operator==(const Stretch&) const = default;
};

/// Cuts those parts of `wanted` (in order, not overlapping) that lie in `range` into stretches of at most
/// kLongestStretch elements, counted from range.begin.
std::vector<Stretch> cut(std::span<const Stretch> wanted, Stretch range);

/// A compressor's CPU loops for one stretch, so that the work before and after runs while its numbers are in the L1
/// cache.
class StretchLoops {
 public:
  /// Offsets of a stretch's bytes in a message.
  struct Place {
    int64_t scales = 0;
    int64_t numbers = 0;
  };

  virtual ~StretchLoops() = default;
  /// Offsets of each stretch.
  virtual std::vector<Place> places(std::span<const Stretch> stretches) const = 0;
  /// As Compressor's, for the n numbers of a stretch.
  virtual void compress_one(float* x, int64_t n, const Place& place, uint8_t* message) const = 0;
  virtual void add_one(const uint8_t* message, const Place& place, int64_t n, float* sum) const = 0;
};

/// Compresses numbers and restores them: a pure function of numbers and stretches, the same on every rank. Uses own
/// loops on the CPU and ATen's operators on other devices, where the last bit of a scale may differ.
///
/// Values are fp32, [n], contiguous; messages uint8, [message_bytes()], aligned to 4 bytes, on the same device.
/// Stretches are those of cut().
class Compressor {
 public:
  virtual ~Compressor() = default;
  /// "sign", "8-bit", "top-k".
  virtual const char* name() const = 0;
  virtual int64_t message_bytes(std::span<const Stretch> stretches) const = 0;
  /// Writes the message, and leaves in `x` the difference to add()'s result: the error for the next message.
  virtual void compress(const at::Tensor& x, std::span<const Stretch> stretches, const at::Tensor& message) const = 0;
  /// Adds the decoded message to `sum`.
  virtual void add(const at::Tensor& message, std::span<const Stretch> stretches, const at::Tensor& sum) const = 0;
  /// Its CPU loops per stretch, or null.
  virtual const StretchLoops* loops() const { return nullptr; }
};

/// One bit per element and a 4-byte scale per stretch: scale * sign(x), with sign + for zeros and scale |x|_2 /
/// sqrt(n). Numbers that are all +s or -s arrive exactly. Cost on the CPU: reads x twice and writes it once. Source:
/// Tang et al. 2021, 1-bit Adam, arXiv:2102.02888.
std::shared_ptr<const Compressor> sign_compressor();

/// One byte per element and a 4-byte scale per 256: the codes of 8-bit optimizer states
/// (kernels/optimizer_args.h), rounded to nearest. Decoded values arrive exactly. Source: Dettmers et al. 2022,
/// arXiv:2110.02861.
std::shared_ptr<const Compressor> eight_bit_compressor();

/// The largest elements of each stretch, ceil(share * n) of them, with 4 bytes of value and 2 of position each. A
/// stretch with no more nonzero elements arrives exactly. Errors: InputError unless 0 < share <= 1. Source: Aji &
/// Heafield 2017, arXiv:1704.05021; Stich et al. 2018, arXiv:1809.07599.
std::shared_ptr<const Compressor> top_k_compressor(double share);

} // namespace trireme::comm
