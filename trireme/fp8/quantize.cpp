#include <trireme/fp8/quantize.h>

#include <ATen/ATen.h>

#include <cmath>
#include <tuple>

namespace trireme::fp8 {
namespace {

// Of the magnitudes that are scaled to the largest number: smaller ones would need an infinite factor.
constexpr double kLeastMagnitude = 1e-12;

at::Tensor largest_magnitude(const at::Tensor& x, Granularity granularity) {
  if (granularity == Granularity::row) {
    return x.abs().amax({1}, /*keepdim=*/true);
  }
  const auto [least, most] = at::aminmax(x);
  return at::maximum(most, least.neg()).view({1, 1});
}

// 2 to the floor of log2, by the bits of a positive fp32; NaN and infinity stay.
at::Tensor down_to_power_of_2(const at::Tensor& x) {
  return x.view(at::kInt).bitwise_and(0x7F800000).view(at::kFloat).masked_fill_(x.isnan(), NAN);
}

} // namespace

at::ScalarType scalar_type(Format format) {
  return format == Format::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

double largest(Format format) {
  return format == Format::e4m3 ? 448 : 57344;
}

at::Tensor saturating_cast(const at::Tensor& x, Format format) {
  return at::clamp(x, -largest(format), largest(format)).to(scalar_type(format));
}

Quantized quantize(const at::Tensor& x, Format format, Granularity granularity, bool power_of_2) {
  const at::Tensor magnitude = largest_magnitude(x, granularity).to(at::kDouble).clamp_min_(kLeastMagnitude);
  at::Tensor factor = magnitude.reciprocal_().mul_(largest(format)).to(at::kFloat);
  if (power_of_2) {
    factor = down_to_power_of_2(factor);
  }
  at::Tensor scaled = at::mul(x, factor); // of the wider type, fp32
  return {scaled.clamp_(-largest(format), largest(format)).to(scalar_type(format)), factor.reciprocal()};
}

} // namespace trireme::fp8
