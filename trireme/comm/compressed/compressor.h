#pragma once

#include <trireme/comm/compressed/message_sizes.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace trireme::comm {

/// Elements [begin, end) of a tensor that are compressed by themselves: with a scale, or a number of largest elements,
/// of their own. Elements in no stretch are not sent.
struct Stretch {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t count() const {
    return end - begin;
  }
  bool operator==(const Stretch&) const = default;
};

/// Cuts those parts of `wanted` (in order, not overlapping) that lie in `range` into stretches of at most
/// kLongestStretch elements, counted from range.begin.
std::vector<Stretch> cut(std::span<const Stretch> wanted, Stretch range);

/// A compressor's loops on the CPU for one stretch: what comes before and after them then happens while its numbers are
/// in the first cache.
class StretchLoops {
 public:
  /// Where the bytes of a stretch lie in a message.
  struct Place {
    int64_t scales = 0;
    int64_t numbers = 0;
  };

  virtual ~StretchLoops() = default;
  /// Of each stretch.
  virtual std::vector<Place> places(std::span<const Stretch> stretches) const = 0;
  /// As Compressor's, of the n numbers of a stretch.
  virtual void compress_one(float* x, int64_t n, const Place& place, uint8_t* message) const = 0;
  virtual void add_one(const uint8_t* message, const Place& place, int64_t n, float* sum) const = 0;
};

/// Turns numbers into fewer bytes and back: a pure function of numbers and stretches, the same on every rank. Own loops
/// on the CPU, ATen's operators on other devices, where a scale's last bit may be another one.
///
/// Values are fp32, [n], contiguous; messages uint8, [message_bytes()], aligned to 4 bytes, on the same device.
/// Stretches are those of cut().
class Compressor {
 public:
  virtual ~Compressor() = default;
  /// "sign", "8-bit", "top-k".
  virtual const char* name() const = 0;
  virtual int64_t message_bytes(std::span<const Stretch> stretches) const = 0;
  /// Writes the message, and leaves in `x` what add() of it lacks: the error that the next message is to make good.
  virtual void compress(const at::Tensor& x, std::span<const Stretch> stretches, const at::Tensor& message) const = 0;
  /// Adds what the message says to `sum`.
  virtual void add(const at::Tensor& message, std::span<const Stretch> stretches, const at::Tensor& sum) const = 0;
  /// What it does on the CPU, where that is done a stretch at a time; else null.
  virtual const StretchLoops* loops() const {
    return nullptr;
  }
};

/// One bit an element and a scale of 4 bytes a stretch: scale * sign(x), where the sign of zeros is + and the scale is
/// |x|_2 / sqrt(n). Numbers that are all +s or -s arrive exactly. Cost on the CPU: reads x twice and writes it once.
/// Source: Tang et al. 2021, 1-bit Adam, arXiv:2102.02888.
std::shared_ptr<const Compressor> sign_compressor();

/// One byte an element and a scale of 4 bytes for each 256: the codes of 8-bit optimizer states
/// (kernels/optimizer_args.h), rounded to nearest. What came out of it arrives exactly. Source: Dettmers et al. 2022,
/// arXiv:2110.02861.
std::shared_ptr<const Compressor> eight_bit_compressor();

/// The largest elements of each stretch, ceil(share * n) of them, with 4 bytes of value and 2 of place each. A stretch
/// with no more elements other than zero arrives exactly. Errors: InputError unless 0 < share <= 1. Source: Aji &
/// Heafield 2017, arXiv:1704.05021; Stich et al. 2018, arXiv:1809.07599.
std::shared_ptr<const Compressor> top_k_compressor(double share);

} // namespace trireme::comm
