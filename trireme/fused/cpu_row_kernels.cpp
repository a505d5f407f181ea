#include <trireme/fused/row_kernels.h>
#include <trireme/fused/rows.h>

#include <torch/utils.h>

#include <array>

namespace trireme::fused {
namespace {

/// Sums over rows: calls f(begin, end, partial sums) for blocks of rows, and adds what they give to `sums` [columns] on
/// this thread; nullptr: not wanted. The blocks depend on the shape alone, so the order of additions does not depend on
/// the number of threads.
template <size_t kSums, class F>
void summed_rows(int64_t rows, int64_t columns, const std::array<float*, kSums>& sums, const F& f) {
  const int64_t block = std::max<int64_t>(16, (rows + 63) / 64);
  const int64_t blocks = (rows + block - 1) / block;
  std::array<at::Tensor, kSums> partial;
  for (size_t i = 0; i < kSums; ++i) {
    if (sums[i] != nullptr) {
      partial[i] = at::zeros({blocks, columns}, at::kFloat);
    }
  }
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      std::array<float*, kSums> at{};
      for (size_t i = 0; i < kSums; ++i) {
        at[i] = sums[i] != nullptr ? partial[i].template mutable_data_ptr<float>() + b * columns : nullptr;
      }
      f(b * block, std::min(rows, (b + 1) * block), at);
    }
  });
  for (size_t i = 0; i < kSums; ++i) {
    if (sums[i] != nullptr) {
      add_rows(partial[i].template const_data_ptr<float>(), blocks, columns, sums[i]);
    }
  }
}

template <auto Kernel, class Args>
void each_row(const Args& args, int64_t rows, at::Device /*device*/) {
  parallel_rows(rows, args.columns,
                [&](int64_t begin, int64_t end) { (kernels::active_fused_kernels().*Kernel)(args, begin, end); });
}

template <auto Kernel>
void each_element(const kernels::GatedSiluArgs& args, int64_t count, at::Device /*device*/) {
  at::parallel_for(0, count, 16384,
                   [&](int64_t begin, int64_t end) { (kernels::active_fused_kernels().*Kernel)(args, begin, end); });
}

void gelu_backward(const kernels::GeluArgs& args, int64_t rows, at::Device device) {
  if (args.dbias == nullptr) {
    return each_row<&kernels::FusedKernelSet::gelu_backward>(args, rows, device);
  }
  summed_rows<1>(rows, args.columns, {args.dbias}, [&](int64_t begin, int64_t end, const auto& partial) {
    kernels::GeluArgs mine = args;
    mine.dbias = partial[0];
    kernels::active_fused_kernels().gelu_backward(mine, begin, end);
  });
}

void layer_norm_backward(const kernels::LayerNormArgs& args, int64_t rows, at::Device /*device*/) {
  summed_rows<3>(rows, args.columns, {args.dweight, args.dshift, args.dbias},
                 [&](int64_t begin, int64_t end, const auto& partial) {
                   kernels::LayerNormArgs mine = args;
                   mine.dweight = partial[0];
                   mine.dshift = partial[1];
                   mine.dbias = partial[2];
                   kernels::active_fused_kernels().layer_norm_backward(mine, begin, end);
                 });
}

void rms_norm_backward(const kernels::RmsNormArgs& args, int64_t rows, at::Device /*device*/) {
  summed_rows<1>(rows, args.columns, {args.dweight}, [&](int64_t begin, int64_t end, const auto& partial) {
    kernels::RmsNormArgs mine = args;
    mine.dweight = partial[0];
    kernels::active_fused_kernels().rms_norm_backward(mine, begin, end);
  });
}

void column_sum(const kernels::ColumnSumArgs& args, int64_t rows, at::Device /*device*/) {
  summed_rows<1>(rows, args.columns, {args.sum}, [&](int64_t begin, int64_t end, const auto& partial) {
    kernels::ColumnSumArgs mine = args;
    mine.sum = partial[0];
    kernels::active_fused_kernels().column_sum(mine, begin, end);
  });
}

void cross_entropy_backward(const kernels::CrossEntropyArgs& args, int64_t rows, at::Device device) {
  kernels::CrossEntropyArgs own = args;
  own.scale = *args.device_scale;
  each_row<&kernels::FusedKernelSet::cross_entropy_backward>(own, rows, device);
}

void rotary(const kernels::RotaryArgs& args, int64_t rows, at::Device /*device*/) {
  parallel_rows(rows, args.heads * args.head_size,
                [&](int64_t begin, int64_t end) { kernels::active_fused_kernels().rotary(args, begin, end); });
}

} // namespace

const RowKernels kCpuRowKernels = {
    each_row<&kernels::FusedKernelSet::gelu, kernels::GeluArgs>,
    gelu_backward,
    each_row<&kernels::FusedKernelSet::layer_norm, kernels::LayerNormArgs>,
    layer_norm_backward,
    each_row<&kernels::FusedKernelSet::rms_norm, kernels::RmsNormArgs>,
    rms_norm_backward,
    each_row<&kernels::FusedKernelSet::add_bias, kernels::AddBiasArgs>,
    column_sum,
    each_row<&kernels::FusedKernelSet::cross_entropy, kernels::CrossEntropyArgs>,
    cross_entropy_backward,
    rotary,
    each_element<&kernels::FusedKernelSet::gated_silu>,
    each_element<&kernels::FusedKernelSet::gated_silu_backward>,
};

} // namespace trireme::fused
