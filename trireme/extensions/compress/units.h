#pragma once

#include <trireme/extensions/compress/compressors/compressor.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace trireme::compress {

/// Units of the numbers that are sent: the powers of two at or below the roots of second moments. Signs give all
/// elements of a stretch one magnitude, and Adam divides by that root, so elements with small gradients would step too
/// far. In these units all elements have about the same size. Dividing and multiplying are exact.
///
/// Stored as fp32 exponents, uint8, 1 byte per element. 0 marks a dead element: its second moment is 0, and it is not
/// sent.
class Units {
 public:
  /// Makes an undefined object.
  Units() = default;
  /// `exponents`: from exponents_of(). `used`: elements that belong to parameters.
  Units(at::Tensor exponents, std::span<const comm::Stretch> used);
  /// `second`: fp32 [n].
  static at::Tensor exponents_of(const at::Tensor& second, double eps);

  bool defined() const { return exponents_.defined(); }
  bool some_dead() const { return dead_count_ > 0; }
  /// Number of elements of parameters that had no gradient so far.
  int64_t dead_count() const { return dead_count_; }
  /// [n], bool.
  at::Tensor dead() const;
  const at::Tensor& exponents() const { return exponents_; }
  /// Divides in place; dead elements become 0.
  void divide(at::Tensor numbers) const;
  void multiply(at::Tensor numbers) const;
  /// Returns the factor from these units to those of `other`; 0 where either is dead.
  at::Tensor factor_to(const Units& other) const;

 private:
  at::Tensor exponents_;
  int64_t dead_count_ = 0;
};

} // namespace trireme::compress
