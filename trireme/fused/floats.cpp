#include <trireme/fused/floats.h>

#include <torch/utils.h>

#include <bit>
#include <cstdint>

namespace trireme::fused {

Floats::Floats(const at::Tensor& any) {
  if (!any.defined()) {
    return;
  }
  tensor_ = any.is_contiguous() ? any : any.contiguous();
  if (any.scalar_type() != at::kBFloat16 || !any.is_cpu()) {
    tensor_ = with_type(tensor_, at::kFloat);
    data_ = tensor_.const_data_ptr<float>();
    return;
  }
  const auto count = static_cast<size_t>(any.numel());
  const auto* const from = static_cast<const uint16_t*>(tensor_.const_data_ptr());
  copy_ = aligned_floats(count);
  float* const to = copy_.get();
  for (size_t i = 0; i < count; ++i) {
    to[i] = std::bit_cast<float>(uint32_t{from[i]} << 16U);
  }
  data_ = to;
}

} // namespace trireme::fused
