#include <trireme/fused/floats.h>
#include <trireme/fused/row_kernels.h>
#include <trireme/fused/rows.h>

#include <torch/utils.h>

#include <array>
#include <cstring>

namespace trireme::fused {
namespace {

using kernels::Element;
using kernels::FusedKernelSet;

/// Sums over rows [columns] of type `element`, written from fp32; nullptr: not wanted.
struct Sums {
  void* to;
  at::Tensor partial = {};

  void write(int64_t blocks, int64_t columns, Element element) const {
    if (to == nullptr) {
      return;
    }
    const at::Tensor total = at::zeros({columns}, at::kFloat);
    add_rows(partial.const_data_ptr<float>(), blocks, columns, total.mutable_data_ptr<float>());
    const bool half = element == Element::bf16;
    const at::Tensor rounded = half ? total.to(at::kBFloat16) : total;
    std::memcpy(to, rounded.const_data_ptr(), static_cast<size_t>(columns) * (half ? 2 : 4));
  }
};

/// Calls f(begin, end, partial sums) for blocks of rows, and writes what they add up to. The blocks depend on the shape
/// alone, so the order of additions does not depend on the number of threads.
template <size_t kSums, class F>
void summed_rows(int64_t rows, int64_t columns, Element parameters, std::array<Sums, kSums> sums, const F& f) {
  const int64_t block = std::max<int64_t>(16, (rows + 63) / 64);
  const int64_t blocks = (rows + block - 1) / block;
  for (Sums& one : sums) {
    if (one.to != nullptr) {
      one.partial = at::zeros({blocks, columns}, at::kFloat);
    }
  }
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      std::array<float*, kSums> at{};
      for (size_t i = 0; i < kSums; ++i) {
        at[i] = sums[i].to != nullptr ? sums[i].partial.template mutable_data_ptr<float>() + b * columns : nullptr;
      }
      f(b * block, std::min(rows, (b + 1) * block), at);
    }
  });
  for (const Sums& one : sums) {
    one.write(blocks, columns, parameters);
  }
}

template <auto Kernel, class Args>
void each_row(const Args& args, int64_t rows) {
  parallel_rows(rows, args.columns,
                [&](int64_t begin, int64_t end) { (kernels::active_fused_kernels().*Kernel)(args, begin, end); });
}

template <auto Kernel>
void each_element(const kernels::GatedSiluArgs& args, int64_t count, at::Device /*device*/) {
  at::parallel_for(0, count, 16384,
                   [&](int64_t begin, int64_t end) { (kernels::active_fused_kernels().*Kernel)(args, begin, end); });
}

void gelu(const kernels::GeluArgs& args, int64_t rows, at::Device /*device*/) {
  const Floats bias(args.bias, args.parameters, args.columns);
  kernels::GeluArgs own = args;
  own.bias = bias.data();
  each_row<&FusedKernelSet::gelu>(own, rows);
}

void gelu_backward(const kernels::GeluArgs& args, int64_t rows, at::Device /*device*/) {
  const Floats bias(args.bias, args.parameters, args.columns);
  kernels::GeluArgs own = args;
  own.bias = bias.data();
  if (args.dbias == nullptr) {
    return each_row<&FusedKernelSet::gelu_backward>(own, rows);
  }
  summed_rows<1>(rows, args.columns, args.parameters, {{{args.dbias}}},
                 [&](int64_t begin, int64_t end, const auto& partial) {
                   kernels::GeluArgs mine = own;
                   mine.dbias = partial[0];
                   kernels::active_fused_kernels().gelu_backward(mine, begin, end);
                 });
}

void layer_norm(const kernels::LayerNormArgs& args, int64_t rows, at::Device /*device*/) {
  const Floats bias(args.bias, args.parameters, args.columns), weight(args.weight, args.parameters, args.columns),
      shift(args.shift, args.parameters, args.columns);
  kernels::LayerNormArgs own = args;
  own.bias = bias.data();
  own.weight = weight.data();
  own.shift = shift.data();
  each_row<&FusedKernelSet::layer_norm>(own, rows);
}

void layer_norm_backward(const kernels::LayerNormArgs& args, int64_t rows, at::Device /*device*/) {
  const Floats weight(args.weight, args.parameters, args.columns);
  summed_rows<3>(rows, args.columns, args.parameters, {{{args.dweight}, {args.dshift}, {args.dbias}}},
                 [&](int64_t begin, int64_t end, const auto& partial) {
                   kernels::LayerNormArgs mine = args;
                   mine.weight = weight.data();
                   mine.dweight = partial[0];
                   mine.dshift = partial[1];
                   mine.dbias = partial[2];
                   kernels::active_fused_kernels().layer_norm_backward(mine, begin, end);
                 });
}

void rms_norm(const kernels::RmsNormArgs& args, int64_t rows, at::Device /*device*/) {
  const Floats weight(args.weight, args.parameters, args.columns);
  kernels::RmsNormArgs own = args;
  own.weight = weight.data();
  each_row<&FusedKernelSet::rms_norm>(own, rows);
}

void rms_norm_backward(const kernels::RmsNormArgs& args, int64_t rows, at::Device /*device*/) {
  const Floats weight(args.weight, args.parameters, args.columns);
  summed_rows<1>(rows, args.columns, args.parameters, {{{args.dweight}}},
                 [&](int64_t begin, int64_t end, const auto& partial) {
                   kernels::RmsNormArgs mine = args;
                   mine.weight = weight.data();
                   mine.dweight = partial[0];
                   kernels::active_fused_kernels().rms_norm_backward(mine, begin, end);
                 });
}

void add_bias(const kernels::AddBiasArgs& args, int64_t rows, at::Device /*device*/) {
  const Floats bias(args.bias, args.parameters, args.columns);
  kernels::AddBiasArgs own = args;
  own.bias = bias.data();
  each_row<&FusedKernelSet::add_bias>(own, rows);
}

void column_sum(const kernels::ColumnSumArgs& args, int64_t rows, at::Device /*device*/) {
  summed_rows<1>(rows, args.columns, args.parameters, {{{args.sum}}},
                 [&](int64_t begin, int64_t end, const auto& partial) {
                   kernels::ColumnSumArgs mine = args;
                   mine.sum = partial[0];
                   kernels::active_fused_kernels().column_sum(mine, begin, end);
                 });
}

void cross_entropy(const kernels::CrossEntropyArgs& args, int64_t rows, at::Device /*device*/) {
  each_row<&FusedKernelSet::cross_entropy>(args, rows);
}

void cross_entropy_backward(const kernels::CrossEntropyArgs& args, int64_t rows, at::Device /*device*/) {
  kernels::CrossEntropyArgs own = args;
  own.scale = *args.device_scale;
  each_row<&FusedKernelSet::cross_entropy_backward>(own, rows);
}

void rotary(const kernels::RotaryArgs& args, int64_t rows, at::Device /*device*/) {
  parallel_rows(rows, args.heads * args.head_size,
                [&](int64_t begin, int64_t end) { kernels::active_fused_kernels().rotary(args, begin, end); });
}

void dropout(const kernels::DropoutArgs& args, int64_t count, at::Device /*device*/) {
  constexpr int64_t kBlock = 64; // whose random words are drawn at once
  static const kernels::DropoutKernel kernel = kernels::dropout_kernel(kernels::active_simd());
  at::parallel_for(0, (count + kBlock - 1) / kBlock, 8192 / kBlock,
                   [&](int64_t begin, int64_t end) { kernel(args, begin * kBlock, std::min(count, end * kBlock)); });
}

} // namespace

const RowKernels kCpuRowKernels = {gelu,
                                   gelu_backward,
                                   layer_norm,
                                   layer_norm_backward,
                                   rms_norm,
                                   rms_norm_backward,
                                   add_bias,
                                   column_sum,
                                   cross_entropy,
                                   cross_entropy_backward,
                                   rotary,
                                   each_element<&FusedKernelSet::gated_silu>,
                                   each_element<&FusedKernelSet::gated_silu_backward>,
                                   dropout};

} // namespace trireme::fused
