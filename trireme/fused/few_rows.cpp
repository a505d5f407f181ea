#include <trireme/fused/few_rows.h>

#include <trireme/fused/floats.h>
#include <trireme/fused/helper_threads.h>
#include <trireme/fused/int8.h>
#include <trireme/fused/rows.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace trireme::fused {
namespace {

/// Up to these rows a library's product takes longer. On an AMD EPYC with AVX-512: in fp32 1.9x for one row, 1.1x for
/// 32; in bf16 2.3x for one row, 1.03x for eight. With AVX2: in fp32 1.9x and 1.2x for eight, in bf16 3x and 1.1x.
int64_t few_rows_of(at::ScalarType type) {
  return type == at::kFloat && kernels::active_simd() == kernels::Simd::avx512 ? 32 : 8;
}
// A library's product needs int8 weights converted: faster from about 64 rows on (AMD EPYC with AVX-512).
constexpr int64_t kFewInt8Rows = 64;

/// Elements of a weight that a thread takes at a time, and how many times it may.
constexpr int64_t kDealt = 32768;
constexpr int64_t kMostParts = 4096;

int64_t elements_of(const kernels::FewRowsArgs& product) {
  return product.outputs * std::max<int64_t>(product.columns, 1);
}
int64_t outputs_at_a_time(const kernels::FewRowsArgs& product, int64_t dealt) {
  return std::max<int64_t>(1, dealt / std::max<int64_t>(product.columns, 1));
}
int64_t parts_of(const kernels::FewRowsArgs& product, int64_t dealt) {
  const int64_t count = outputs_at_a_time(product, dealt);
  return (product.outputs + count - 1) / count;
}

void run(const std::vector<kernels::FewRowsArgs>& products) {
  int64_t elements = 0, parts = 0;
  for (const kernels::FewRowsArgs& product : products) {
    elements += elements_of(product);
  }
  const int64_t dealt = std::max(kDealt, elements / kMostParts);
  for (const kernels::FewRowsArgs& product : products) {
    parts += parts_of(product, dealt);
  }
  helper_threads().run(parts, at::get_num_threads(), [&](int64_t part) {
    auto product = products.begin();
    for (; part >= parts_of(*product, dealt); ++product) {
      part -= parts_of(*product, dealt);
    }
    const int64_t count = outputs_at_a_time(*product, dealt);
    kernels::active_fused_kernels().few_rows(*product, part * count, std::min((part + 1) * count, product->outputs));
  });
}

} // namespace

// Not where gradients are only off, as in a forward that is recomputed: that one must give the same bits.
bool is_few_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!c10::InferenceMode::is_enabled() || x.dim() == 0 || weight.dim() != 2 || rows_of(x) == 0 || !usable({x, bias}) ||
      !weight.is_contiguous() || at::autocast::is_autocast_enabled(at::kCPU)) {
    return false;
  }
  if (is_int8(weight)) {
    return weight.is_cpu() && columns_of_int8(weight) == columns_of(x) && rows_of(x) <= kFewInt8Rows;
  }
  return columns_of(x) == columns_of(weight) && rows_of(x) <= few_rows_of(weight.scalar_type()) && weight.is_cpu() &&
         x.scalar_type() == weight.scalar_type();
}

std::vector<at::Tensor> few_rows(const at::Tensor& x, at::TensorList weights, at::TensorList biases) {
  const Floats rows(x);
  std::vector<at::Tensor> y;
  std::vector<Floats> shifts;
  std::vector<kernels::FewRowsArgs> products;
  for (size_t i = 0; i < weights.size(); ++i) {
    at::DimVector sizes(x.sizes());
    sizes.back() = weights[i].size(0);
    y.push_back(at::empty(sizes, x.options()));
    shifts.emplace_back(biases[i]);
    kernels::FewRowsArgs product;
    product.x = rows.data();
    product.weight = weights[i].const_data_ptr();
    product.bias = shifts.back().data();
    product.y = y.back().mutable_data_ptr();
    product.rows = rows_of(x);
    product.columns = columns_of(x);
    product.outputs = weights[i].size(0);
    product.element = is_int8(weights[i]) ? kernels::Element::i8 : element_of(weights[i]);
    product.result = element_of(x);
    products.push_back(product);
  }
  run(products);
  return y;
}

} // namespace trireme::fused
