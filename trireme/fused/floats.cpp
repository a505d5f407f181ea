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
  if (any.scalar_type() == at::kBFloat16) {
    widen(tensor_.const_data_ptr(), any.numel());
  } else {
    tensor_ = with_type(tensor_, at::kFloat);
    data_ = tensor_.const_data_ptr<float>();
  }
}

Floats::Floats(const void* numbers, kernels::Element element, int64_t count) {
  if (numbers != nullptr && element == kernels::Element::bf16) {
    widen(numbers, count);
  } else {
    data_ = static_cast<const float*>(numbers);
  }
}

void Floats::widen(const void* halves, int64_t count) {
  const auto* const from = static_cast<const uint16_t*>(halves);
  copy_ = aligned_floats(static_cast<size_t>(count));
  float* const to = copy_.get();
  for (int64_t i = 0; i < count; ++i) {
    to[i] = std::bit_cast<float>(uint32_t{from[i]} << 16U);
  }
  data_ = to;
}

} // namespace trireme::fused
