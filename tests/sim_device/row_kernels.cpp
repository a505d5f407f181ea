// The row kernels of the simulated device: the CPU's on the kernels' mapping, so that results are the CPU's bits.
#include "sim_device.h"

#include <trireme/fused/row_kernels.h>

namespace trireme::sim {
namespace {

using fused::kCpuRowKernels;
using kernels::Element;

/// What one kernel touches; the pointers it was given become those of the other mapping.
class RowCall {
 public:
  RowCall(int64_t rows, int64_t columns, Element element)
      : rows_(rows), columns_(columns), width_(element == Element::f32 ? 4 : 2) {}

  /// [rows, columns] of the kernel's element type.
  template <class T>
  void elements(T*& pointer, bool writes) {
    bytes(pointer, rows_ * columns_ * width_, writes);
  }
  /// [columns] of the parameters' type.
  template <class T>
  void per_column(T*& pointer, Element parameters, bool writes) {
    bytes(pointer, columns_ * (parameters == Element::f32 ? 4 : 2), writes);
  }
  template <class T>
  void per_row(T*& pointer, bool writes) {
    bytes(pointer, rows_ * static_cast<int64_t>(sizeof(T)), writes);
  }
  template <class T>
  void bytes(T*& pointer, int64_t count, bool writes) {
    if (pointer != nullptr && count > 0) {
      touched_.push_back({pointer, count, writes});
      pointer = static_cast<T*>(kernel_pointer(pointer));
    }
  }
  /// `kernel` runs now, and in each replay of a graph.
  template <class F>
  void launch(const char* name, const F& kernel) const {
    sim::launch(name, touched_, kernel);
  }

 private:
  int64_t rows_, columns_, width_;
  std::vector<Touched> touched_;
};

void gelu(const kernels::GeluArgs& args, int64_t rows, at::Device) {
  RowCall call(rows, args.columns, args.element);
  kernels::GeluArgs own = args;
  call.elements(own.x, false);
  call.per_column(own.bias, args.parameters, false);
  call.elements(own.y, true);
  call.launch("gelu", [=] { kCpuRowKernels.gelu(own, rows, at::kCPU); });
}

void gelu_backward(const kernels::GeluArgs& args, int64_t rows, at::Device) {
  RowCall call(rows, args.columns, args.element);
  kernels::GeluArgs own = args;
  call.elements(own.x, false);
  call.per_column(own.bias, args.parameters, false);
  call.elements(own.dy, false);
  call.elements(own.dx, true);
  call.per_column(own.dbias, args.parameters, true);
  call.launch("gelu_backward", [=] { kCpuRowKernels.gelu_backward(own, rows, at::kCPU); });
}

void layer_norm(const kernels::LayerNormArgs& args, int64_t rows, at::Device) {
  RowCall call(rows, args.columns, args.element);
  kernels::LayerNormArgs own = args;
  call.elements(own.x, false);
  call.elements(own.residual, false);
  call.per_column(own.bias, args.parameters, false);
  call.elements(own.h, true);
  call.elements(own.y, true);
  call.per_column(own.weight, args.parameters, false);
  call.per_column(own.shift, args.parameters, false);
  call.per_row(own.mean, true);
  call.per_row(own.rstd, true);
  call.launch("layer_norm", [=] { kCpuRowKernels.layer_norm(own, rows, at::kCPU); });
}

void layer_norm_backward(const kernels::LayerNormArgs& args, int64_t rows, at::Device) {
  RowCall call(rows, args.columns, args.element);
  kernels::LayerNormArgs own = args;
  call.elements(own.h, false);
  call.per_column(own.weight, args.parameters, false);
  call.per_row(own.mean, false);
  call.per_row(own.rstd, false);
  call.elements(own.dy, false);
  call.elements(own.dh_in, false);
  call.elements(own.dh, true);
  call.per_column(own.dweight, args.parameters, true);
  call.per_column(own.dshift, args.parameters, true);
  call.per_column(own.dbias, args.parameters, true);
  call.launch("layer_norm_backward", [=] { kCpuRowKernels.layer_norm_backward(own, rows, at::kCPU); });
}

void rms_norm(const kernels::RmsNormArgs& args, int64_t rows, at::Device) {
  RowCall call(rows, args.columns, args.element);
  kernels::RmsNormArgs own = args;
  call.elements(own.x, false);
  call.elements(own.residual, false);
  call.elements(own.h, true);
  call.elements(own.y, true);
  call.per_column(own.weight, args.parameters, false);
  call.per_row(own.rstd, true);
  call.launch("rms_norm", [=] { kCpuRowKernels.rms_norm(own, rows, at::kCPU); });
}

void rms_norm_backward(const kernels::RmsNormArgs& args, int64_t rows, at::Device) {
  RowCall call(rows, args.columns, args.element);
  kernels::RmsNormArgs own = args;
  call.elements(own.h, false);
  call.per_column(own.weight, args.parameters, false);
  call.per_row(own.rstd, false);
  call.elements(own.dy, false);
  call.elements(own.dh_in, false);
  call.elements(own.dh, true);
  call.per_column(own.dweight, args.parameters, true);
  call.launch("rms_norm_backward", [=] { kCpuRowKernels.rms_norm_backward(own, rows, at::kCPU); });
}

void add_bias(const kernels::AddBiasArgs& args, int64_t rows, at::Device) {
  RowCall call(rows, args.columns, args.element);
  kernels::AddBiasArgs own = args;
  call.elements(own.x, false);
  call.elements(own.residual, false);
  call.per_column(own.bias, args.parameters, false);
  call.elements(own.out, true);
  call.launch("add_bias", [=] { kCpuRowKernels.add_bias(own, rows, at::kCPU); });
}

void column_sum(const kernels::ColumnSumArgs& args, int64_t rows, at::Device) {
  RowCall call(rows, args.columns, args.element);
  kernels::ColumnSumArgs own = args;
  call.elements(own.x, false);
  call.per_column(own.sum, args.parameters, true);
  call.launch("column_sum", [=] { kCpuRowKernels.column_sum(own, rows, at::kCPU); });
}

void cross_entropy(const kernels::CrossEntropyArgs& args, int64_t rows, at::Device) {
  RowCall call(rows, args.to_next_row(), args.element);
  kernels::CrossEntropyArgs own = args;
  call.elements(own.logits, false);
  call.per_row(own.target, false);
  call.per_row(own.lse, true);
  call.per_row(own.loss, true);
  call.launch("cross_entropy", [=] { kCpuRowKernels.cross_entropy(own, rows, at::kCPU); });
}

void cross_entropy_backward(const kernels::CrossEntropyArgs& args, int64_t rows, at::Device) {
  RowCall call(rows, args.to_next_row(), args.element);
  kernels::CrossEntropyArgs own = args;
  call.elements(own.logits, false);
  call.per_row(own.target, false);
  call.per_row(own.lse, false);
  call.bytes(own.device_scale, 4, false);
  call.elements(own.dlogits, true);
  call.launch("cross_entropy_backward", [=] { kCpuRowKernels.cross_entropy_backward(own, rows, at::kCPU); });
}

void rotary(const kernels::RotaryArgs& args, int64_t rows, at::Device) {
  RowCall call(1, 1, args.element);
  kernels::RotaryArgs own = args;
  const int64_t samples = rows / args.tokens, width = args.element == Element::f32 ? 4 : 2;
  const auto extent = [&](const kernels::HeadStrides& at) {
    return ((samples - 1) * at.sample + (args.heads - 1) * at.head + (args.tokens - 1) * at.row + args.head_size) *
           width;
  };
  call.bytes(own.x, extent(args.x_at), false);
  call.bytes(own.y, extent(args.y_at), true);
  call.bytes(own.cos, args.tokens * args.head_size * 2, false);
  call.bytes(own.sin, args.tokens * args.head_size * 2, false);
  call.launch("rotary", [=] { kCpuRowKernels.rotary(own, rows, at::kCPU); });
}

void gated_silu(const kernels::GatedSiluArgs& args, int64_t count, at::Device) {
  RowCall call(1, count, args.element);
  kernels::GatedSiluArgs own = args;
  call.elements(own.gate, false);
  call.elements(own.up, false);
  call.elements(own.y, true);
  call.launch("gated_silu", [=] { kCpuRowKernels.gated_silu(own, count, at::kCPU); });
}

void gated_silu_backward(const kernels::GatedSiluArgs& args, int64_t count, at::Device) {
  RowCall call(1, count, args.element);
  kernels::GatedSiluArgs own = args;
  call.elements(own.gate, false);
  call.elements(own.up, false);
  call.elements(own.dy, false);
  call.elements(own.dgate, true);
  call.elements(own.dup, true);
  call.launch("gated_silu_backward", [=] { kCpuRowKernels.gated_silu_backward(own, count, at::kCPU); });
}

void dropout(const kernels::DropoutArgs& args, int64_t count, at::Device) {
  RowCall call(1, count, args.element);
  kernels::DropoutArgs own = args;
  call.elements(own.x, false);
  call.elements(own.residual, false);
  call.elements(own.y, true);
  call.bytes(own.seed, 8, false);
  call.launch("dropout", [=] { kCpuRowKernels.dropout(own, count, at::kCPU); });
}

const fused::RowKernels kRowKernelsThere = {gelu,
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
                                            gated_silu,
                                            gated_silu_backward,
                                            dropout};

} // namespace

void use_cpu_row_kernels() {
  fused::register_row_kernels(c10::kPrivateUse1, kRowKernelsThere);
}

} // namespace trireme::sim
