#include <trireme/fused/few_rows.h>
#include <trireme/fused/fused.h>
#include <trireme/fused/gradient_home.h>
#include <trireme/fused/int8.h>
#include <trireme/fused/product.h>
#include <trireme/fused/rows.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>

namespace trireme::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Outside these, the whole product is as fast (1.1 to 1.9x slower inside, on an AMD EPYC with AVX2).
constexpr int64_t kFewestOutputs = 8192;
constexpr int64_t kFewestRows = 32;
constexpr int64_t kMostRows = 1024;
constexpr int64_t kBlock = 1024; // outputs of one product: 512 rows of them are 2 MB

// MKL has other kernels there, which do not keep their blocks of a wide result in the cache.
bool uses_mkl_on_another_vendors_cpu() {
#ifdef __x86_64__
  unsigned eax = 0;
  std::array<unsigned, 3> vendor{}; // the name is in ebx, edx, ecx
  __get_cpuid(0, &eax, &vendor[0], &vendor[2], &vendor[1]);
  return at::hasMKL() && std::memcmp(vendor.data(), "GenuineIntel", 12) != 0;
#else
  return false;
#endif
}

void multiply_in_blocks(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor scratch = at::empty({x.size(0) * kBlock}, x.options());
  for (int64_t begin = 0; begin < weight.size(0); begin += kBlock) {
    const int64_t count = std::min(kBlock, weight.size(0) - begin);
    at::Tensor block = scratch.narrow(0, 0, x.size(0) * count).view({-1, count});
    at::mm_out(block, x, weight.narrow(0, begin, count).t());
    y.narrow(1, begin, count).copy_(block);
  }
}

at::Tensor wide_linear(const at::Tensor& x, const at::Tensor& weight) {
  at::DimVector sizes(x.sizes());
  sizes.back() = weight.size(0);
  at::Tensor y = at::empty(sizes, x.options());
  multiply_in_blocks(y.view({-1, weight.size(0)}), x.reshape({-1, x.size(-1)}), weight);
  return y;
}

// Products that at::linear's own backward does not compute: in blocks, or a weight's gradient into its home.
struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, bool in_blocks) {
    context->save_for_backward({x, weight, bias.value_or(at::Tensor())});
    return in_blocks ? wide_linear(x, weight) : at::linear(x, weight, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& bias = saved[2];
    const at::Tensor dy = grads[0].reshape({-1, weight.size(0)});
    at::Tensor dx, dweight, dbias;
    if (context->needs_input_grad(0)) { // false if a pipeline computes the gradients of weights alone
      dx = dy.mm(weight).view(x.sizes());
    }
    if (context->needs_input_grad(1)) {
      const at::Tensor rows = x.reshape({-1, x.size(-1)});
      if (at::Tensor home = unwritten_gradient_memory(weight); home.defined()) {
        at::mm_out(home, dy.t(), rows);
      } else {
        dweight = dy.t().mm(rows);
      }
    }
    if (bias.defined() && context->needs_input_grad(2)) {
      if (at::Tensor home = unwritten_gradient_memory(bias); home.defined()) {
        at::sum_out(home, dy, 0);
      } else {
        dbias = dy.sum(0);
      }
    }
    return {dx, dweight, dbias, {}};
  }
};

bool is_wide(const at::Tensor& x, const at::Tensor& weight) {
  static const bool blocks_help = uses_mkl_on_another_vendors_cpu();
  const auto is_fp32 = [](const at::Tensor& tensor) { return tensor.is_cpu() && tensor.scalar_type() == at::kFloat; };
  return blocks_help && x.dim() > 0 && weight.dim() == 2 && x.size(-1) == weight.size(1) &&
         weight.size(0) >= kFewestOutputs && rows_of(x) >= kFewestRows && rows_of(x) <= kMostRows && is_fp32(x) &&
         is_fp32(weight) && !at::autocast::is_autocast_enabled(at::kCPU);
}

// Whether Linear computes the bits of at::linear, forward and backward, and writes the weight's gradient itself.
bool writes_weight_gradient(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::GradMode::is_enabled() && has_gradient_home(weight) && x.dim() > 1 && weight.dim() == 2 &&
         x.scalar_type() == weight.scalar_type() && x.device() == weight.device() &&
         (!bias.defined() || bias.dim() == 1) && !at::autocast::is_autocast_enabled(x.device().type());
}

// Inputs that a rank's part of a packed weight has before those of x, to begin with a group (int8.h).
int64_t zeros_before(const at::Tensor& x, const at::Tensor& weight) {
  if (!is_int8(weight) || x.dim() == 0) {
    return 0;
  }
  const int64_t zeros = columns_of_int8(weight) - columns_of(x);
  return zeros < kernels::kInt8Group ? zeros : 0;
}

} // namespace

void multiply_into(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight) {
  if (is_wide(x, weight)) {
    multiply_in_blocks(y, x, weight);
  } else {
    at::Tensor to = y;
    at::mm_out(to, x, weight.t());
  }
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (const int64_t zeros = zeros_before(x, weight); zeros > 0) {
    return linear(at::constant_pad_nd(x, {zeros, 0}), weight, bias);
  }
  if (is_few_rows(x, weight, bias)) {
    return few_rows(x, {weight}, {bias})[0];
  }
  if (is_int8(weight)) {
    return at::linear(x, unpack_int8(weight, x.scalar_type()), if_defined(bias));
  }
  const bool in_blocks = !bias.defined() && is_wide(x, weight);
  if (in_blocks || writes_weight_gradient(x, weight, bias)) {
    return Linear::apply(x, weight, if_defined(bias), in_blocks);
  }
  return at::linear(x, weight, if_defined(bias));
}

std::vector<at::Tensor> linears(const at::Tensor& x, at::TensorList weights, at::TensorList biases) {
  const auto bias_of = [&](size_t i) { return biases.empty() ? at::Tensor() : biases[i]; };
  bool all_few = true;
  std::vector<at::Tensor> shifts, y;
  for (size_t i = 0; i < weights.size(); ++i) {
    shifts.push_back(bias_of(i));
    all_few = all_few && is_few_rows(x, weights[i], shifts.back());
  }
  if (all_few) {
    return few_rows(x, weights, shifts);
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    y.push_back(linear(x, weights[i], shifts[i]));
  }
  return y;
}

} // namespace trireme::fused
