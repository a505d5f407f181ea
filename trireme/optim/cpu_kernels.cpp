#include <trireme/kernels/kernels.h>
#include <trireme/optim/device_kernels.h>
#include <trireme/optim/shard_check.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

namespace trireme::optim {
namespace {

static_assert(kStateBlock == kernels::kStateBlock);
static_assert(kBlock % kStateBlock == 0, "threads get whole blocks of 8-bit states");

// Calls f(begin, end) for consecutive ranges of full blocks that cover [0, n), on all threads.
template <class F>
void parallel_ranges(int64_t n, const F& f) {
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) { f(first * kBlock, std::min(last * kBlock, n)); });
}

/// The arguments with the factor read from memory; nullopt if the call is to change nothing.
template <class Args>
std::optional<Args> with_scale(const Args& args) {
  Args own = args;
  if (args.device_grad_scale != nullptr) {
    own.grad_scale = *args.device_grad_scale;
    own.device_grad_scale = nullptr;
  }
  return std::isnan(own.grad_scale) ? std::nullopt : std::optional(own);
}

// Part of a segment with one result, for any number of threads.
struct Block {
  int64_t begin;
  int64_t end;
  size_t segment;
};

std::vector<Block> blocks_of(std::span<const Segment> segments) {
  std::vector<Block> blocks;
  for (size_t s = 0; s < segments.size(); ++s) {
    for (int64_t begin = segments[s].begin; begin < segments[s].end; begin += kBlock) {
      blocks.push_back({begin, std::min(begin + kBlock, segments[s].end), s});
    }
  }
  return blocks;
}

template <class F>
void parallel_each(size_t count, const F& f) {
  at::parallel_for(0, static_cast<int64_t>(count), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      f(static_cast<size_t>(i));
    }
  });
}

template <auto Kernel, class Args>
void over_segments(const Args& given, std::span<const Segment> segments, at::Device) {
  const auto kernel = kernels::active_kernels().*Kernel;
  const auto args = with_scale(given);
  if (!args) {
    return;
  }
  std::vector<Args> own;
  for (const Segment& segment : segments) {
    own.push_back(kernels::args_of(*args, segment, kernels::row_of(*args, segment)));
  }
  if (segments.size() == 1) { // threads get one range each
    parallel_ranges(segments[0].end - segments[0].begin,
                    [&](int64_t begin, int64_t end) { kernel(own[0], begin, end); });
    return;
  }
  const std::vector<Block> blocks = blocks_of(segments);
  parallel_each(blocks.size(), [&](size_t i) {
    const int64_t first = segments[blocks[i].segment].begin;
    kernel(own[blocks[i].segment], blocks[i].begin - first, blocks[i].end - first);
  });
}

void lamb_moments(const kernels::LambArgs& given, std::span<const Segment> segments, double* sums, at::Device) {
  const auto args = with_scale(given);
  if (!args) {
    return;
  }
  const std::vector<Block> blocks = blocks_of(segments);
  std::vector<kernels::LambSums> parts(blocks.size());
  parallel_each(blocks.size(), [&](size_t i) {
    const Segment& segment = segments[blocks[i].segment];
    const kernels::LambArgs own = kernels::args_of(*args, segment, kernels::row_of(*args, segment));
    parts[i] =
        kernels::active_kernels().lamb_moments(own, blocks[i].begin - segment.begin, blocks[i].end - segment.begin);
  });
  for (size_t i = 0; i < blocks.size(); ++i) {
    const int64_t parameter = segments[blocks[i].segment].parameter;
    sums[2 * parameter] += parts[i].param;
    sums[2 * parameter + 1] += parts[i].update;
  }
}

void lamb_apply(const kernels::LambArgs& given, std::span<const Segment> segments, const double* sums,
                const kernels::LambScale& scale, at::Device) {
  const auto args = with_scale(given);
  if (!args) {
    return;
  }
  std::vector<kernels::LambArgs> own;
  for (const Segment& segment : segments) {
    const kernels::StepScalars* const row = kernels::row_of(*args, segment);
    const double weight = std::sqrt(sums[2 * segment.parameter]);
    const double update = std::sqrt(sums[2 * segment.parameter + 1]);
    const double ratio = weight > 0 && update > 0 ? std::clamp(weight / update, scale.min_coeff, scale.max_coeff) : 1;
    own.push_back(kernels::args_of(*args, segment, row));
    own.back().step_size =
        static_cast<float>((row != nullptr ? row->lr_times_correction : scale.lr_times_correction) * ratio);
  }
  const std::vector<Block> blocks = blocks_of(segments);
  parallel_each(blocks.size(), [&](size_t i) {
    const int64_t first = segments[blocks[i].segment].begin;
    kernels::active_kernels().lamb_apply(own[blocks[i].segment], blocks[i].begin - first, blocks[i].end - first);
  });
}

std::vector<double> squared_norms_of(const void* x, kernels::Element type, int64_t n) {
  const int64_t bytes = type == kernels::Element::f32 ? 4 : 2;
  std::vector<double> sums((n + kBlock - 1) / kBlock);
  parallel_ranges(n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kBlock) {
      sums[i / kBlock] = kernels::active_kernels().squared_norm(static_cast<const char*>(x) + i * bytes, type,
                                                                std::min(kBlock, end - i));
    }
  });
  return sums;
}

void add_squared_norm(const void* x, kernels::Element type, int64_t n, double* to, at::Device) {
  double sum = 0;
  for (const double block : squared_norms_of(x, type, n)) {
    sum += block;
  }
  *to += sum;
}

void decode_states(const kernels::StateArray& state, bool is_signed, int64_t n, float* to, at::Device) {
  parallel_ranges(n, [&](int64_t begin, int64_t end) {
    kernels::active_kernels().decode_state(state, is_signed, begin, end, to + begin);
  });
}

void encode_states(const kernels::StateArray& state, bool is_signed, int64_t n, const float* from, at::Device) {
  parallel_ranges(n, [&](int64_t begin, int64_t end) {
    kernels::active_kernels().encode_state(state, is_signed, begin, end, from + begin, kernels::kToNearest);
  });
}

} // namespace

std::vector<double> squared_norms(const at::Tensor& grad) {
  return squared_norms_of(grad.const_data_ptr(), element_of(grad.scalar_type()), grad.numel());
}

const DeviceKernels kCpuKernels = {
    over_segments<&kernels::KernelSet::adam, kernels::AdamArgs>,
    over_segments<&kernels::KernelSet::sgd, kernels::SgdArgs>,
    over_segments<&kernels::KernelSet::lion, kernels::LionArgs>,
    over_segments<&kernels::KernelSet::adagrad, kernels::AdagradArgs>,
    over_segments<&kernels::KernelSet::rmsprop, kernels::RmspropArgs>,
    lamb_moments,
    lamb_apply,
    add_squared_norm,
    decode_states,
    encode_states,
};

} // namespace trireme::optim
