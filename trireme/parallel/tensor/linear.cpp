#include <trireme/parallel/tensor/linear.h>

#include <trireme/base/error.h>
#include <trireme/fp8/linear.h>
#include <trireme/fused/few_rows.h>
#include <trireme/fused/fused.h>
#include <trireme/fused/int8.h>
#include <trireme/fused/linear_cross_entropy.h>
#include <trireme/fused/rows.h>
#include <trireme/parallel/tensor/pieces.h>
#include <trireme/parallel/tensor/split_mark.h>
#include <trireme/parallel/tensor/transfer.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace trireme::tensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct HeldRanks : torch::CustomClassHolder {
  explicit HeldRanks(Ranks ranks) : ranks(std::move(ranks)) {}
  Ranks ranks;
};

Ranks ranks_in(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<HeldRanks>(context->saved_data["ranks"].toCapsule())->ranks;
}

at::Tensor rows_of(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

/// Weights [out, in] transposed for products, [in, out].
variable_list transposed(at::TensorList weights, at::ScalarType type) {
  variable_list result;
  for (const at::Tensor& weight : weights) {
    result.push_back(weight.to(type).t());
  }
  return result;
}

variable_list converted(at::TensorList tensors, at::ScalarType type) {
  variable_list result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.to(type));
  }
  return result;
}

/// Sum over i of x_i W_i, in memory that other ranks read directly.
at::Tensor sum_of_products(at::TensorList xs, at::TensorList weights, const comm::Group& ranks) {
  at::DimVector sizes(xs[0].sizes());
  sizes.back() = weights[0].size(1);
  const at::Tensor y = allocate(ranks, sizes, xs[0]);
  at::Tensor flat = rows_of(y);
  at::mm_out(flat, rows_of(xs[0]), weights[0]);
  for (size_t i = 1; i < xs.size(); ++i) {
    flat.addmm_(rows_of(xs[i]), weights[i]);
  }
  return y;
}

// `biases`: none, or one per weight.
variable_list linears(const at::Tensor& x, at::TensorList weights, at::TensorList biases) {
  if (std::none_of(weights.begin(), weights.end(), is_marked)) {
    return fused::linears(x, weights, biases);
  }
  variable_list y;
  for (size_t i = 0; i < weights.size(); ++i) {
    y.push_back(whole_linear(x, weights[i], biases.empty() ? at::Tensor() : biases[i]));
  }
  return y;
}

// All by one call where all are in FP8: x is quantised once.
variable_list fp8_linears(const at::Tensor& x, at::TensorList weights, at::TensorList biases,
                          const std::vector<const fp8::Options*>& fp8) {
  const bool all = std::all_of(fp8.begin(), fp8.end(), [&](const fp8::Options* one) { return one == fp8.front(); });
  if (all) {
    return fp8::linears(x, weights, biases, *fp8.front());
  }
  variable_list y;
  for (size_t i = 0; i < weights.size(); ++i) {
    y.push_back(whole_linear(x, weights[i], biases.empty() ? at::Tensor() : biases[i], fp8[i]));
  }
  return y;
}

struct ColumnLinears : torch::autograd::Function<ColumnLinears> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList weights,
                               at::TensorList biases, const Ranks& ranks) {
    context->saved_data["ranks"] = c10::IValue::make_capsule(c10::make_intrusive<HeldRanks>(ranks));
    context->saved_data["biases"] = static_cast<int64_t>(biases.size());
    variable_list saved = {x};
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));
    if (!ranks.splits_sequence()) {
      return linears(x, weights, biases);
    }
    const at::ScalarType type = fused::product_type(x);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return multiply_joined(x, transposed(weights, type), converted(biases, type), ranks.group).results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    fused::refuse_create_graph("column_linear", kOnOneRank);
    const Ranks ranks = ranks_in(context);
    const variable_list saved = context->get_saved_variables();
    const size_t count = grads.size();
    const auto biases = static_cast<size_t>(context->saved_data["biases"].toInt());
    const bool splits = ranks.splits_sequence();
    variable_list dy;
    bool wants_weights = false;
    for (size_t i = 0; i < count; ++i) {
      dy.push_back(grads[i].contiguous());
      wants_weights = wants_weights || context->needs_input_grad(1 + i);
    }
    std::optional<Transfer> gathering;
    if (splits && wants_weights) {
      gathering.emplace(start_join(saved[0], ranks.group, kSequenceDim));
    }
    std::optional<Transfer> dx;
    if (context->needs_input_grad(0)) { // false if a pipeline computes the gradients of weights alone
      const variable_list taken = converted(at::TensorList(saved).slice(1, count), dy[0].scalar_type());
      dx.emplace(splits ? start_multiply_to_part(dy, taken, ranks.group)
                        : start_sum(sum_of_products(dy, taken, ranks.group), ranks.group));
    }
    variable_list gradients(1 + count + biases + 1);
    if (wants_weights) {
      const at::Tensor x = gathering ? gathering->wait() : saved[0];
      for (size_t i = 0; i < count; ++i) {
        if (context->needs_input_grad(1 + i)) {
          gradients[1 + i] = rows_of(dy[i]).t().mm(rows_of(x).to(dy[i].scalar_type())).to(saved[1 + i].scalar_type());
        }
      }
    }
    for (size_t i = 0; i < biases; ++i) {
      if (context->needs_input_grad(1 + count + i)) {
        gradients[1 + count + i] = rows_of(dy[i]).sum(0);
      }
    }
    if (dx) {
      gradients[0] = dx->wait().to(saved[0].scalar_type());
    }
    return gradients;
  }
};

struct RowLinear : torch::autograd::Function<RowLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& any_x, const at::Tensor& weight,
                            const Ranks& ranks) {
    const at::ScalarType type = fused::product_type(any_x);
    const at::Tensor x = any_x.to(type).contiguous();
    const at::Tensor w = weight.to(type);
    context->saved_data["ranks"] = c10::IValue::make_capsule(c10::make_intrusive<HeldRanks>(ranks));
    context->saved_data["type"] = static_cast<int64_t>(any_x.scalar_type());
    context->save_for_backward({x, weight});
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    if (ranks.splits_sequence()) {
      return start_multiply_to_part({x}, {w.t()}, ranks.group).wait();
    }
    at::DimVector sizes(x.sizes());
    sizes.back() = w.size(0);
    const at::Tensor y = allocate(ranks.group, sizes, x);
    const at::Tensor from = rows_of(x);
    const at::Tensor to = rows_of(y);
    const int64_t row_bytes = to.size(1) * static_cast<int64_t>(to.element_size());
    const int64_t rows = std::max<int64_t>(1, piece_sizes(to.is_cpu()).piece_bytes / std::max<int64_t>(row_bytes, 1));
    std::vector<Transfer> sums;
    for (int64_t begin = 0; begin < to.size(0); begin += rows) {
      at::Tensor piece = to.slice(0, begin, begin + rows);
      at::mm_out(piece, from.slice(0, begin, begin + rows), w.t());
      sums.push_back(start_sum(piece, ranks.group));
    }
    for (Transfer& sum : sums) {
      sum.wait();
    }
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    fused::refuse_create_graph("row_linear", kOnOneRank);
    const Ranks ranks = ranks_in(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::ScalarType type = x.scalar_type();
    const auto given = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    at::Tensor dy = grads[0];
    at::Tensor dx, dweight;
    if (context->needs_input_grad(0)) {
      const at::Tensor weight = saved[1].to(type);
      if (ranks.splits_sequence()) {
        const Products products = multiply_joined(dy, {weight}, {}, ranks.group, context->needs_input_grad(1));
        dx = products.results[0].to(given);
        dy = products.whole;
      } else {
        dx = at::matmul(dy.to(type), weight).to(given);
      }
    } else if (ranks.splits_sequence()) {
      dy = start_join(dy.contiguous(), ranks.group, kSequenceDim).wait();
    }
    if (context->needs_input_grad(1)) {
      dweight = rows_of(dy.to(type)).t().mm(rows_of(x)).to(saved[1].scalar_type());
    }
    return {dx, dweight, {}};
  }
};

void check_split(const at::Tensor& x, const Ranks& ranks, int64_t parts) {
  if (x.dim() < 2 || (ranks.splits_sequence() && (x.dim() < 3 || x.size(kSequenceDim) % parts != 0))) {
    throw InputError(
        "tensor parallel",
        concat("a split linear layer got a tensor of sizes ", x.sizes(), ", whose tokens (dim 1) cannot be split over ",
               ranks.group.size(), " ranks of ", ranks.group.name()),
        "With sequence_parallel it takes [samples, tokens, features], and the tensor ranks must divide the tokens: "
        "choose another sequence_length, or switch it off.");
  }
}

} // namespace

at::Tensor whole_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        const fp8::Options* fp8) {
  if (fp8 != nullptr) {
    return fp8::linears(x, {weight}, bias.defined() ? at::TensorList(bias) : at::TensorList(), *fp8)[0];
  }
  if (is_marked(weight)) { // operators on it are ours (split_mark.h)
    return at::linear(x, weight, fused::if_defined(bias));
  }
  return fused::linear(x, weight, bias);
}

at::Tensor column_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const Ranks& ranks,
                         const fp8::Options* fp8) {
  return column_linears(x, {weight}, bias.defined() ? at::TensorList(bias) : at::TensorList(), ranks, {fp8})[0];
}

std::vector<at::Tensor> column_linears(const at::Tensor& x, at::TensorList weights, at::TensorList biases,
                                       const Ranks& ranks, const std::vector<const fp8::Options*>& fp8) {
  if (!ranks.alone()) {
    check_split(x, ranks, 1);
  }
  if (std::any_of(fp8.begin(), fp8.end(), [](const fp8::Options* one) { return one != nullptr; })) {
    return fp8_linears(enter(x, ranks), weights, biases, fp8);
  }
  if (!ranks.alone()) {
    return ColumnLinears::apply(x, weights, biases, ranks);
  }
  return linears(x, weights, biases);
}

at::Tensor row_linear(const at::Tensor& x, const at::Tensor& weight, const Ranks& ranks, const fp8::Options* fp8) {
  if (ranks.alone()) {
    return whole_linear(x, weight, {}, fp8);
  }
  check_split(x, ranks, ranks.group.size());
  if (fp8 != nullptr) {
    return leave(whole_linear(x, weight, {}, fp8), ranks);
  }
  if (!ranks.splits_sequence() && (fused::is_int8(weight) || fused::is_few_rows(x, weight, {}))) { // generation
    return start_sum(fused::linear(x, weight), ranks.group).wait();
  }
  return RowLinear::apply(x, weight, ranks);
}

} // namespace trireme::tensor
