#include <trireme/extensions/compress/units.h>

#include <trireme/kernels/kernels.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <utility>

namespace trireme::compress {
namespace {

/// fp32 numbers have their exponent from this bit on.
constexpr int64_t kMantissaBits = 23;
constexpr int64_t kGrain = 1 << 15; // fewest elements per thread

at::Tensor power(const at::Tensor& exponents) {
  return exponents.to(at::kInt).bitwise_left_shift_(kMantissaBits).view(at::kFloat);
}

// 2^-k has the exponent 254 - e if 2^k has e; 0 stays 0.
at::Tensor inverse_power(const at::Tensor& exponents) {
  return power(exponents.neg().sub_(2).masked_fill_(exponents.eq(0), 0));
}

// Scales in one pass, with the CPU kernels.
void scale_here(const at::Tensor& exponents, bool inverse, const at::Tensor& numbers) {
  const auto* const from = exponents.const_data_ptr<uint8_t>();
  auto* const to = numbers.mutable_data_ptr<float>();
  at::parallel_for(0, numbers.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernels::active_kernels().scale_by_powers(from + begin, end - begin, inverse, to + begin);
  });
}

} // namespace

at::Tensor Units::exponents_of(const at::Tensor& second, double eps) {
  const at::Tensor exponents = second.sqrt().add_(eps).view(at::kInt).bitwise_right_shift(kMantissaBits);
  return exponents.masked_fill_(second.eq(0), 0).to(at::kByte);
}

Units::Units(at::Tensor exponents, std::span<const comm::Stretch> used) : exponents_(std::move(exponents)) {
  const at::Tensor dead_here = dead();
  at::Tensor count = at::zeros({}, at::TensorOptions(at::kLong).device(exponents_.device()));
  for (const comm::Stretch& stretch : used) {
    count.add_(dead_here.slice(0, stretch.begin, stretch.end).sum());
  }
  dead_count_ = count.item<int64_t>();
}

at::Tensor Units::dead() const {
  return exponents_.eq(0);
}

void Units::divide(at::Tensor numbers) const {
  numbers.is_cpu() ? scale_here(exponents_, true, numbers) : void(numbers.mul_(inverse_power(exponents_)));
}

void Units::multiply(at::Tensor numbers) const {
  numbers.is_cpu() ? scale_here(exponents_, false, numbers) : void(numbers.mul_(power(exponents_)));
}

at::Tensor Units::factor_to(const Units& other) const {
  return power(exponents_).mul_(inverse_power(other.exponents_));
}

} // namespace trireme::compress
