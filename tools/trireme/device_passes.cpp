#include "device_passes.h"

#include <trireme/base/error.h>
#include <trireme/fused/row_kernels.h>

#include <ATen/Functions.h>

#include <algorithm>
#include <memory>

namespace trireme::tools {
namespace {

using fused::RowKernels;
using kernels::Element;

constexpr int64_t kHeadSize = 64;
constexpr int64_t kRowsPerLogitRow = 8;
constexpr double kFloatBytes = sizeof(float);

using TimedCall = std::pair<double, std::function<void()>>;

// Arrays of one pass, all on the device; held by its call.
class PassArrays {
 public:
  PassArrays(at::ScalarType type, at::Device device) : options_(at::TensorOptions(device).dtype(type)) {}

  void* of(at::IntArrayRef shape) { return keep(at::randn(shape, options_)); }
  void* floats(at::IntArrayRef shape) { return keep(at::rand(shape, options_.dtype(at::kFloat))); }
  // Weights have the type of the rows, which the CPU's kernels know as fp32 only.
  void* weights(int64_t columns) { return options_.device().is_cpu() ? floats({columns}) : of({columns}); }
  int64_t* classes(int64_t rows, int64_t vocab) {
    return static_cast<int64_t*>(keep(at::randint(vocab, {rows}, options_.dtype(at::kLong))));
  }
  double element_bytes() const {
    return static_cast<double>(c10::elementSize(c10::typeMetaToScalarType(options_.dtype())));
  }
  Element element() const { return options_.dtype() == at::kFloat ? Element::f32 : Element::bf16; }
  Element parameters() const { return options_.device().is_cpu() ? Element::f32 : element(); }
  at::Device device() const { return options_.device(); }

 private:
  void* keep(const at::Tensor& tensor) {
    kept_.push_back(tensor);
    return tensor.data_ptr();
  }

  at::TensorOptions options_;
  std::vector<at::Tensor> kept_;
};

using HeldArrays = std::shared_ptr<PassArrays>;

template <class Args>
std::function<void()> call_of(void (*kernel)(const Args&, int64_t, at::Device), const Args& args, int64_t count,
                              const HeldArrays& arrays) {
  return [=] { kernel(args, count, arrays->device()); };
}

TimedCall gelu(const RowKernels& own, const PassSizes& sizes, const HeldArrays& a, bool backward) {
  const int64_t columns = 4 * sizes.hidden;
  kernels::GeluArgs args{.x = a->of({sizes.rows, columns}), .bias = a->weights(columns)};
  args.columns = columns;
  args.element = a->element();
  args.parameters = a->parameters();
  const double bytes = a->element_bytes() * static_cast<double>(sizes.rows * columns);
  if (!backward) {
    args.y = a->of({sizes.rows, columns});
    return {2 * bytes, call_of(own.gelu, args, sizes.rows, a)};
  }
  args.dy = a->of({sizes.rows, columns});
  args.dx = a->of({sizes.rows, columns});
  args.dbias = a->weights(columns);
  return {3 * bytes, call_of(own.gelu_backward, args, sizes.rows, a)};
}

TimedCall layer_norm(const RowKernels& own, const PassSizes& sizes, const HeldArrays& a, bool backward) {
  const int64_t rows = sizes.rows;
  const int64_t columns = sizes.hidden;
  kernels::LayerNormArgs args{.x = a->of({rows, columns})};
  args.h = a->of({rows, columns});
  args.weight = a->weights(columns);
  args.shift = a->weights(columns);
  args.mean = static_cast<float*>(a->floats({rows}));
  args.rstd = static_cast<float*>(a->floats({rows}));
  args.columns = columns;
  args.element = a->element();
  args.parameters = a->parameters();
  const double bytes =
      4 * a->element_bytes() * static_cast<double>(rows * columns) + 2 * kFloatBytes * static_cast<double>(rows);
  if (!backward) {
    args.residual = a->of({rows, columns});
    args.bias = a->weights(columns);
    args.y = a->of({rows, columns});
    return {bytes, call_of(own.layer_norm, args, rows, a)};
  }
  args.dy = a->of({rows, columns});
  args.dh_in = a->of({rows, columns});
  args.dh = a->of({rows, columns});
  args.dweight = a->weights(columns);
  args.dshift = a->weights(columns);
  args.dbias = a->weights(columns);
  return {bytes, call_of(own.layer_norm_backward, args, rows, a)};
}

TimedCall rms_norm(const RowKernels& own, const PassSizes& sizes, const HeldArrays& a, bool backward) {
  const int64_t rows = sizes.rows;
  const int64_t columns = sizes.hidden;
  kernels::RmsNormArgs args{.x = a->of({rows, columns})};
  args.h = a->of({rows, columns});
  args.weight = a->weights(columns);
  args.rstd = static_cast<float*>(a->floats({rows}));
  args.columns = columns;
  args.element = a->element();
  args.parameters = a->parameters();
  const double bytes =
      4 * a->element_bytes() * static_cast<double>(rows * columns) + kFloatBytes * static_cast<double>(rows);
  if (!backward) {
    args.residual = a->of({rows, columns});
    args.y = a->of({rows, columns});
    return {bytes, call_of(own.rms_norm, args, rows, a)};
  }
  args.dy = a->of({rows, columns});
  args.dh_in = a->of({rows, columns});
  args.dh = a->of({rows, columns});
  args.dweight = a->weights(columns);
  return {bytes, call_of(own.rms_norm_backward, args, rows, a)};
}

TimedCall add_bias(const RowKernels& own, const PassSizes& sizes, const HeldArrays& a) {
  kernels::AddBiasArgs args{.x = a->of({sizes.rows, sizes.hidden})};
  args.residual = a->of({sizes.rows, sizes.hidden});
  args.bias = a->weights(sizes.hidden);
  args.out = a->of({sizes.rows, sizes.hidden});
  args.columns = sizes.hidden;
  args.element = a->element();
  args.parameters = a->parameters();
  return {3 * a->element_bytes() * static_cast<double>(sizes.rows * sizes.hidden),
          call_of(own.add_bias, args, sizes.rows, a)};
}

TimedCall column_sum(const RowKernels& own, const PassSizes& sizes, const HeldArrays& a) {
  kernels::ColumnSumArgs args{.x = a->of({sizes.rows, sizes.hidden}), .sum = a->weights(sizes.hidden)};
  args.columns = sizes.hidden;
  args.element = a->element();
  args.parameters = a->parameters();
  return {a->element_bytes() * static_cast<double>(sizes.rows * sizes.hidden),
          call_of(own.column_sum, args, sizes.rows, a)};
}

TimedCall gated_silu(const RowKernels& own, const PassSizes& sizes, const HeldArrays& a, bool backward) {
  const int64_t count = 4 * sizes.rows * sizes.hidden;
  kernels::GatedSiluArgs args{.gate = a->of({count}), .up = a->of({count})};
  args.element = a->element();
  const double bytes = a->element_bytes() * static_cast<double>(count);
  if (!backward) {
    args.y = a->of({count});
    return {3 * bytes, call_of(own.gated_silu, args, count, a)};
  }
  args.dy = a->of({count});
  args.dgate = a->of({count});
  args.dup = a->of({count});
  return {5 * bytes, call_of(own.gated_silu_backward, args, count, a)};
}

TimedCall cross_entropy(const RowKernels& own, const PassSizes& sizes, const HeldArrays& a, bool backward) {
  const int64_t rows = std::max<int64_t>(1, sizes.rows / kRowsPerLogitRow);
  kernels::CrossEntropyArgs args{.logits = a->of({rows, sizes.vocab}), .target = a->classes(rows, sizes.vocab)};
  args.lse = static_cast<float*>(a->floats({rows}));
  args.columns = sizes.vocab;
  args.element = a->element();
  const double bytes = a->element_bytes() * static_cast<double>(rows * sizes.vocab);
  if (!backward) {
    args.loss = static_cast<float*>(a->floats({rows}));
    return {bytes, call_of(own.cross_entropy, args, rows, a)};
  }
  args.dlogits = const_cast<void*>(args.logits);
  args.device_scale = static_cast<float*>(a->floats({1}));
  return {2 * bytes, call_of(own.cross_entropy_backward, args, rows, a)};
}

TimedCall rotary(const RowKernels& own, const PassSizes& sizes, const HeldArrays& a) {
  const int64_t head = sizes.hidden % kHeadSize == 0 ? kHeadSize : sizes.hidden;
  kernels::RotaryArgs args;
  args.x = a->of({sizes.rows, sizes.hidden});
  args.y = a->of({sizes.rows, sizes.hidden});
  args.x_at = args.y_at = {.sample = sizes.rows * sizes.hidden, .head = head, .row = sizes.hidden};
  args.cos = static_cast<float*>(a->floats({sizes.rows, head / 2}));
  args.sin = static_cast<float*>(a->floats({sizes.rows, head / 2}));
  args.tokens = sizes.rows;
  args.heads = sizes.hidden / head;
  args.head_size = head;
  args.element = a->element();
  return {2 * a->element_bytes() * static_cast<double>(sizes.rows * sizes.hidden) +
              kFloatBytes * static_cast<double>(sizes.rows * head),
          call_of(own.rotary, args, sizes.rows, a)};
}

} // namespace

std::vector<DevicePass> device_passes(const PassSizes& sizes, at::ScalarType type, at::Device device) {
  const RowKernels* const own = fused::row_kernels(at::empty({0}, at::TensorOptions(device).dtype(type)));
  if (own == nullptr) {
    return {};
  }
  if (sizes.hidden % 2 != 0) {
    throw InputError("bench device", concat("--hidden must be even, got ", sizes.hidden, '.'));
  }
  std::vector<DevicePass> passes;
  const auto add = [&](const char* name, auto make) {
    passes.push_back({name, [=] { return make(std::make_shared<PassArrays>(type, device)); }});
  };
  const auto add_both = [&](const std::string& name, auto make) {
    for (const bool backward : {false, true}) {
      add((name + (backward ? "_backward" : "")).c_str(),
          [=](const HeldArrays& a) { return make(*own, sizes, a, backward); });
    }
  };
  add_both("layer_norm", layer_norm);
  add_both("rms_norm", rms_norm);
  add_both("gelu", gelu);
  add_both("gated_silu", gated_silu);
  add_both("cross_entropy", cross_entropy);
  add("rotary", [=](const HeldArrays& a) { return rotary(*own, sizes, a); });
  add("add_bias", [=](const HeldArrays& a) { return add_bias(*own, sizes, a); });
  add("column_sum", [=](const HeldArrays& a) { return column_sum(*own, sizes, a); });
  return passes;
}

} // namespace trireme::tools
