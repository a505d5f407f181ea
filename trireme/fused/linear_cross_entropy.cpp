#include <trireme/fused/linear_cross_entropy.h>

#include <trireme/fused/fused.h>
#include <trireme/fused/gradient_home.h>
#include <trireme/fused/int8.h>
#include <trireme/fused/logit_rows.h>
#include <trireme/fused/product.h>
#include <trireme/fused/rows.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>

namespace trireme::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// With fewer, a step is a matter of launches, and the padded weight costs more than the product gains.
constexpr int64_t kFewestPaddedColumns = 4096;
constexpr int64_t kFewestPaddedRows = 256;

/// The sum over chunks of dlogits^T x.
class WeightGradient {
 public:
  explicit WeightGradient(bool in_one_chunk) : in_one_chunk_(in_one_chunk) {}

  void add(const at::Tensor& dlogits, const at::Tensor& x) {
    const bool is_half = at::isReducedFloatingType(x.scalar_type());
    if (in_one_chunk_ || !sum_.defined()) {
      sum_ = dlogits.t().mm(x);
      sum_ = is_half && !in_one_chunk_ ? sum_.to(at::kFloat) : sum_;
    } else if (is_half) { // a half type would lose what each chunk adds
      sum_.add_(dlogits.t().mm(x));
    } else {
      sum_.addmm_(dlogits.t(), x);
    }
  }
  /// Those of the weight's own rows: without padding.
  at::Tensor of(const at::Tensor& weight) const {
    return sum_.defined() ? sum_.narrow(0, 0, weight.size(0)) : at::zeros_like(weight);
  }

 private:
  bool in_one_chunk_;
  at::Tensor sum_;
};

at::Tensor padded_rows(const at::Tensor& weight, int64_t padding) {
  if (padding == 0) {
    return weight;
  }
  const at::Tensor wide = at::empty({weight.size(0) + padding, weight.size(1)}, weight.options());
  wide.narrow(0, 0, weight.size(0)).copy_(weight);
  wide.narrow(0, weight.size(0), padding).zero_(); // their logits are 0, and so are the gradients'
  return wide;
}

/// gradient * factor in the gradient's memory, rounded once, then in `type`. The host does not wait for a device.
at::Tensor scaled(at::Tensor gradient, const at::Tensor& factor, at::ScalarType type) {
  const at::AutoDispatchBelowADInplaceOrView same_version; // the other half of a split backward unpacks it too
  if (!gradient.defined()) {
    return gradient;
  }
  if (!gradient.is_cpu()) {
    at::mul_out(gradient, gradient, factor.view({1})); // a 0-dim factor would be rounded to the gradient's type
  } else if (const double by = factor.item<double>(); by != 1) {
    gradient.mul_(by);
  }
  return gradient.to(type);
}

/// Writes or adds gradient * factor to the weight's own memory. False: it has none.
bool scale_into_home(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& factor) {
  GradientMemory home = gradient_memory(weight);
  if (!home) {
    return false;
  }
  if (!home.is_first) {
    home.memory.add_(scaled(gradient, factor, weight.scalar_type()));
  } else if (gradient.is_cpu()) {
    home.memory.copy_(scaled(gradient, factor, gradient.scalar_type()));
  } else {
    at::mul_out(home.memory, gradient, factor.view({1}));
  }
  return true;
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& any_x, const at::Tensor& weight,
                            const ClassColumns& classes, bool mean, const LogitCut& cut, bool wants_x,
                            bool wants_weight) {
    const at::Tensor x = any_x.contiguous();
    const int64_t rows = x.size(0), columns = weight.size(0);
    const at::ScalarType sums = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor losses = at::empty({rows}, x.options().dtype(sums));
    const at::Tensor share =
        mean ? classes.counts.sum().to(at::kDouble).reciprocal() : at::ones({}, x.options().dtype(at::kDouble));
    const at::Tensor wide = padded_rows(weight, cut.padding);
    const at::Tensor memory = at::empty({std::min(rows, cut.rows), wide.size(0)}, x.options());
    const at::Tensor dx = wants_x ? at::empty_like(x) : at::Tensor();
    WeightGradient dweight(cut.is_one(rows));
    for (int64_t begin = 0; begin < rows; begin += cut.rows) {
      const int64_t count = std::min(cut.rows, rows - begin);
      const auto part = [&](const at::Tensor& of_all) { return of_all.narrow(0, begin, count); };
      const at::Tensor all_columns = memory.narrow(0, 0, count);
      multiply_into(all_columns, part(x), wide);
      const at::Tensor logits = all_columns.narrow(1, 0, columns);
      const at::Tensor own = logit_row_terms(logits, part(classes.column));
      const at::Tensor terms = classes.join ? classes.join(own) : own;
      part(losses).copy_(terms[0] - terms[1]);
      if (wants_x || wants_weight) {
        write_logit_gradient(logits, logits, part(classes.column), part(classes.counts), terms[0], share);
      }
      if (wants_x) {
        at::Tensor to = part(dx);
        at::mm_out(to, all_columns, wide);
      }
      if (wants_weight) {
        dweight.add(all_columns, part(x));
      }
    }
    context->save_for_backward({dx, wants_weight ? dweight.of(weight) : at::Tensor()});
    context->saved_data["weight"] = weight; // not its values: only its gradient's memory is asked for
    context->saved_data["weight_type"] = static_cast<int64_t>(weight.scalar_type());
    context->saved_data["x_is_gone"] = false;
    context->saved_data["weight_is_gone"] = false;
    return losses.masked_fill_(classes.counts.logical_not(), 0).sum(0, false, at::kDouble).mul(share).to(sums);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    refuse_create_graph("linear_cross_entropy", "Compute the logits first, and cross_entropy() of them.");
    // A pipeline may ask for the gradients of weights in a second backward of its own: each is given once.
    const bool wants_x = context->needs_input_grad(0), wants_weight = context->needs_input_grad(1);
    const auto take = [&](bool wants, const char* gone) {
      if (wants && context->saved_data[gone].toBool()) {
        throw Error(
            "fused",
            "linear_cross_entropy: second backward, but the first one overwrote the gradients that forward kept.",
            "Compute the loss again for a second backward; retain_graph does not keep them.");
      }
      context->saved_data[gone] = context->saved_data[gone].toBool() || wants;
    };
    take(wants_x, "x_is_gone");
    take(wants_weight, "weight_is_gone");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor weight = context->saved_data["weight"].toTensor();
    const bool is_written = wants_weight && saved[1].defined() && scale_into_home(weight, saved[1], grads[0]);
    const auto weight_type = static_cast<at::ScalarType>(context->saved_data["weight_type"].toInt());
    return {wants_x ? scaled(saved[0], grads[0], weight_type) : at::Tensor(),
            wants_weight && !is_written ? scaled(saved[1], grads[0], weight_type) : at::Tensor(),
            {},
            {},
            {},
            {},
            {}};
  }
};

} // namespace

LogitCut cut_logits(int64_t rows, int64_t columns, at::ScalarType type, at::Device device, int64_t most_bytes) {
  const bool pads = !device.is_cpu() && columns >= kFewestPaddedColumns && rows >= kFewestPaddedRows;
  const int64_t padding = pads ? (kLogitPadding - columns % kLogitPadding) % kLogitPadding : 0;
  const auto element = static_cast<int64_t>(c10::elementSize(type));
  return {logit_chunk_rows(rows, element * (columns + padding), most_bytes), padding};
}

bool takes_chunks(const at::Tensor& x, const at::Tensor& weight, const LogitCut& cut, int64_t rows) {
  const at::ScalarType type = product_type(x);
  return rows > 0 && !is_int8(weight) && (type == at::kFloat || type == at::kDouble || type == at::kBFloat16) &&
         (!cut.is_one(rows) || cut.padding > 0);
}

at::ScalarType product_type(const at::Tensor& x) {
  const at::DeviceType device = x.device().type();
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device) : x.scalar_type();
}

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const ClassColumns& classes, bool mean,
                                const LogitCut& cut) {
  if (x.dim() != 2 || weight.dim() != 2 || x.size(1) != weight.size(1) || classes.column.dim() != 1 ||
      classes.column.size(0) != x.size(0) || classes.counts.sizes() != classes.column.sizes() ||
      (cut.rows < 1 && x.size(0) > 0)) {
    throw InputError("fused", concat("linear_cross_entropy: expected x [rows, H], a weight [classes, H] and a class "
                                     "for each row, got ",
                                     x.sizes(), ", ", weight.sizes(), " and ", classes.column.sizes(), '.'));
  }
  const at::ScalarType type = product_type(x);
  const at::Tensor from = x.to(type), by = weight.to(type);
  const bool grad = at::GradMode::is_enabled();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return LinearCrossEntropy::apply(from, by, classes, mean, cut, grad && from.requires_grad(),
                                   grad && by.requires_grad());
}

} // namespace trireme::fused
