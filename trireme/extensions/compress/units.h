#pragma once

#include <trireme/extensions/compress/compressors/compressor.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace trireme::compress {

/// Units of the numbers that travel: the powers of two at or below the roots of second moments. Signs give all elements
/// of a stretch one magnitude, and Adam divides by that root, so elements with small gradients would step too far; in
/// these units all have about one size. Dividing and multiplying are exact.
///
/// Kept as exponents, 1 byte an element: uint8, as fp32 has them. 0: dead, an element whose second moment is 0, of
/// which nothing travels.
class Units {
 public:
  /// Without units: of nothing.
  Units() = default;
  /// Of exponents from exponents_of(); `used`: where parameters lie.
  Units(at::Tensor exponents, std::span<const comm::Stretch> used);
  /// `second`: fp32 [n].
  static at::Tensor exponents_of(const at::Tensor& second, double eps);

  bool defined() const {
    return exponents_.defined();
  }
  bool some_dead() const {
    return dead_count_ > 0;
  }
  /// Elements of parameters without a gradient so far.
  int64_t dead_count() const {
    return dead_count_;
  }
  /// [n], bool.
  at::Tensor dead() const;
  const at::Tensor& exponents() const {
    return exponents_;
  }
  /// In place; dead elements become 0.
  void divide(at::Tensor numbers) const;
  void multiply(at::Tensor numbers) const;
  /// What turns numbers in these units into such of `other`; 0 where either is dead.
  at::Tensor factor_to(const Units& other) const;

 private:
  at::Tensor exponents_;
  int64_t dead_count_ = 0;
};

} // namespace trireme::compress
