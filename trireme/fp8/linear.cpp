#include <trireme/fp8/linear.h>

#include <trireme/fp8/products.h>
#include <trireme/fused/rows.h>

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/autograd.h>

namespace trireme::fp8 {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What differs between recipes.
struct Rules {
  Granularity granularity = Granularity::tensor;
  Granularity weight_of_dx = Granularity::tensor;
  Format gradients = Format::e5m2;
  bool quantizes_dweight = true;
};

Rules rules_of(Recipe recipe) {
  using enum Granularity;
  switch (recipe) {
    case Recipe::tensorwise:
      return {tensor, tensor, Format::e5m2, true};
    case Recipe::rowwise:
      return {row, row, Format::e4m3, true};
    case Recipe::rowwise_with_gw_hp:
      return {row, tensor, Format::e4m3, false};
  }
  return {};
}

at::Tensor matrix_of(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

// Tokens are what dW sums over: zeros make their number one that a GPU takes, and change no sum.
at::Tensor padded(const at::Tensor& rows) {
  const int64_t missing = (kMultiple - rows.size(0) % kMultiple) % kMultiple;
  return missing == 0 ? rows : at::constant_pad_nd(rows, {0, 0, 0, missing});
}

// Quantises a matrix for two products: as it is and, for sums over its rows, transposed. One scale serves both.
class BothWays {
 public:
  BothWays(const at::Tensor& x, Format format, Granularity granularity, bool power_of_2)
      : x_(x), format_(format), granularity_(granularity), power_of_2_(power_of_2) {}

  const Quantized& plain() {
    if (!plain_.values.defined()) {
      plain_ = quantize(x_, format_, granularity_, power_of_2_);
    }
    return plain_;
  }
  const Quantized& transposed() {
    if (!transposed_.values.defined()) {
      transposed_ = granularity_ == Granularity::tensor ? plain().transposed()
                                                        : quantize(x_.t(), format_, granularity_, power_of_2_);
    }
    return transposed_;
  }

 private:
  at::Tensor x_;
  Format format_;
  Granularity granularity_;
  bool power_of_2_;
  Quantized plain_;
  Quantized transposed_;
};

struct Fp8Linears : torch::autograd::Function<Fp8Linears> {
  static variable_list forward(AutogradContext* context, const at::Tensor& any_x, at::TensorList weights,
                               at::TensorList biases, const Options& options) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const at::Tensor x = any_x.to(at::kBFloat16);
    context->saved_data["recipe"] = static_cast<int64_t>(options.recipe);
    context->saved_data["power_of_2"] = options.round_scales_to_power_of_2;
    context->saved_data["type"] = static_cast<int64_t>(any_x.scalar_type());
    context->saved_data["weights"] = static_cast<int64_t>(weights.size());
    context->saved_data["biases"] = static_cast<int64_t>(biases.size());
    context->saved_data["bias_type"] = static_cast<int64_t>(biases.empty() ? at::kFloat : biases[0].scalar_type());
    variable_list saved = {x};
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));

    const Rules rules = rules_of(options.recipe);
    const Products& device = products(x.device());
    const auto quantized = [&](const at::Tensor& factor) {
      return quantize(factor, Format::e4m3, rules.granularity, options.round_scales_to_power_of_2);
    };
    const Quantized x8 = quantized(matrix_of(x));
    at::DimVector sizes(x.sizes());
    variable_list results;
    for (size_t i = 0; i < weights.size(); ++i) {
      at::Tensor y = device.multiply(x8, quantized(weights[i]), Sums::fast);
      sizes.back() = weights[i].size(0);
      results.push_back((biases.empty() ? y : y.add_(biases[i])).view(sizes));
    }
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    fused::refuse_create_graph("fp8::linears", "Leave engine.fp8 out.");
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const variable_list saved = context->get_saved_variables();
    const auto count = static_cast<size_t>(context->saved_data["weights"].toInt());
    const Rules rules = rules_of(static_cast<Recipe>(context->saved_data["recipe"].toInt()));
    const bool power_of_2 = context->saved_data["power_of_2"].toBool();
    const Products& device = products(saved[0].device());
    const auto quantizer = [&](const at::Tensor& factor, Format format) {
      return BothWays(factor, format, rules.granularity, power_of_2);
    };
    const at::Tensor x = padded(matrix_of(saved[0]));
    BothWays x8 = quantizer(x, Format::e4m3);

    const auto biases = static_cast<size_t>(context->saved_data["biases"].toInt());
    variable_list gradients(1 + count + biases + 1);
    at::Tensor dx;
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor& weight = saved[1 + i];
      const at::Tensor given = matrix_of(grads[i].to(at::kBFloat16));
      const at::Tensor dy = padded(given);
      BothWays dy8 = quantizer(dy, rules.gradients);
      if (context->needs_input_grad(0)) { // false if a pipeline computes the gradients of weights alone
        const Quantized weight8 = rules.weight_of_dx == Granularity::row
                                      ? quantize(weight.t(), Format::e4m3, Granularity::row, power_of_2)
                                      : quantize(weight, Format::e4m3, Granularity::tensor, power_of_2).transposed();
        const at::Tensor part = device.multiply(dy8.plain(), weight8, Sums::exact);
        dx = dx.defined() ? dx.add_(part) : part;
      }
      if (context->needs_input_grad(1 + i)) {
        gradients[1 + i] =
            (rules.quantizes_dweight ? device.multiply(dy8.transposed(), x8.transposed(), Sums::exact) : dy.t().mm(x))
                .to(weight.scalar_type());
      }
      if (biases > 0 && context->needs_input_grad(1 + count + i)) {
        gradients[1 + count + i] =
            given.sum(0).to(static_cast<at::ScalarType>(context->saved_data["bias_type"].toInt()));
      }
    }
    if (dx.defined()) {
      const int64_t rows = saved[0].numel() / saved[0].size(-1);
      gradients[0] = dx.narrow(0, 0, rows)
                         .view(saved[0].sizes())
                         .to(static_cast<at::ScalarType>(context->saved_data["type"].toInt()));
    }
    return gradients;
  }
};

} // namespace

bool fits(const at::Tensor& weight) {
  return weight.dim() == 2 && weight.size(0) % kMultiple == 0 && weight.size(1) % kMultiple == 0 && weight.numel() > 0;
}

std::vector<at::Tensor> linears(const at::Tensor& x, at::TensorList weights, at::TensorList biases,
                                const Options& options) {
  if (x.numel() == 0) { // no largest magnitude
    std::vector<at::Tensor> results;
    for (size_t i = 0; i < weights.size(); ++i) {
      results.push_back(at::linear(x, weights[i], biases.empty() ? std::nullopt : std::optional(biases[i])));
    }
    return results;
  }
  return Fp8Linears::apply(x, weights, biases, options);
}

} // namespace trireme::fp8
