#include <trireme/fused/fused.h>
#include <trireme/fused/logit_rows.h>
#include <trireme/fused/rows.h>

#include <ATen/ATen.h>
#include <torch/autograd.h>

namespace trireme::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Returns the number of rows that count.
int64_t check_targets(const at::Tensor& target, int64_t classes, int64_t ignore_index) {
  const int64_t* classes_of = target.const_data_ptr<int64_t>();
  int64_t counted = 0;
  for (int64_t row = 0; row < target.numel(); ++row) {
    if (classes_of[row] == ignore_index) {
      continue;
    }
    if (classes_of[row] < 0 || classes_of[row] >= classes) {
      throw InputError(
          "fused",
          concat("cross_entropy: target ", classes_of[row], " of row ", row, " is outside [0, ", classes, ")."),
          "The data hold a class (a token) that the model's last layer does not have.");
    }
    ++counted;
  }
  return counted;
}

/// Remembers whether backward may overwrite the logits.
void keep_logits(AutogradContext* context, bool overwrite) {
  context->saved_data["overwrite"] = overwrite;
  context->saved_data["gone"] = false;
}

/// What forward saved, unless a backward has overwritten the logits.
variable_list saved_of(AutogradContext* context) {
  if (context->saved_data["gone"].toBool()) {
    throw Error("fused",
                "cross_entropy: second backward, but the first one overwrote the logits with their gradient "
                "(Logits::overwrite).",
                "Call fused::cross_entropy with Logits::keep where a graph is used twice (retain_graph).");
  }
  return context->get_saved_variables();
}

/// Where backward writes the gradient: new memory, or the logits.
at::Tensor place_of_gradient(AutogradContext* context, const at::Tensor& logits) {
  if (!context->saved_data["overwrite"].toBool()) {
    return at::empty_like(logits);
  }
  context->saved_data["gone"] = true;
  logits.unsafeGetTensorImpl()->bump_version(); // other code that keeps them for backward gets an error
  return logits.detach();
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& any_logits, const at::Tensor& any_target,
                            bool mean, int64_t ignore_index, bool overwrite) {
    const at::Tensor logits = any_logits.contiguous();
    const at::Tensor target = any_target.contiguous();
    const int64_t counted = check_targets(target, logits.size(1), ignore_index);
    const int64_t rows = logits.size(0);
    const at::Tensor lse = at::empty({rows}, at::kFloat);
    const at::Tensor losses = at::empty({rows}, at::kFloat);
    kernels::CrossEntropyArgs args;
    args.logits = logits.const_data_ptr();
    args.target = target.const_data_ptr<int64_t>();
    args.ignore = ignore_index;
    args.lse = lse.mutable_data_ptr<float>();
    args.loss = losses.mutable_data_ptr<float>();
    args.columns = logits.size(1);
    args.element = element_of(logits);
    parallel_rows(rows, args.columns,
                  [&](int64_t begin, int64_t end) { kernels::active_fused_kernels().cross_entropy(args, begin, end); });
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) {
      sum += args.loss[row];
    }
    context->save_for_backward({logits, target, lse});
    context->saved_data["ignore_index"] = ignore_index;
    context->saved_data["share"] = mean ? 1.0 / static_cast<double>(counted) : 1.0;
    keep_logits(context, overwrite);
    return at::full({}, mean ? sum / static_cast<double>(counted) : sum, at::kFloat);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    refuse_create_graph("cross_entropy");
    const variable_list saved = saved_of(context);
    const at::Tensor& logits = saved[0];
    const at::Tensor dlogits = place_of_gradient(context, logits);
    kernels::CrossEntropyArgs args;
    args.logits = logits.const_data_ptr();
    args.target = saved[1].const_data_ptr<int64_t>();
    args.ignore = context->saved_data["ignore_index"].toInt();
    args.lse = const_cast<float*>(saved[2].const_data_ptr<float>());
    args.dlogits = dlogits.mutable_data_ptr();
    args.scale = static_cast<float>(grads[0].item<double>() * context->saved_data["share"].toDouble());
    args.columns = logits.size(1);
    args.element = element_of(logits);
    parallel_rows(logits.size(0), args.columns, [&](int64_t begin, int64_t end) {
      kernels::active_fused_kernels().cross_entropy_backward(args, begin, end);
    });
    return {dlogits, {}, {}, {}, {}};
  }
};

/// The same on a device, where the host does not wait, and for fp16.
struct CrossEntropyOfRows : torch::autograd::Function<CrossEntropyOfRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& any_logits, const at::Tensor& target, bool mean,
                            int64_t ignore_index, bool overwrite) {
    const at::Tensor logits = any_logits.contiguous();
    const at::Tensor counts = target.ne(ignore_index);
    // A negative class must fail in gather as one that is too large does; there it would be "not in these columns".
    const at::Tensor columns = target.masked_fill(target.lt(0), logits.size(1)).masked_fill_(counts.logical_not(), 0);
    const at::Tensor terms = logit_row_terms(logits, columns);
    const at::Tensor lse = terms[0];
    const at::Tensor losses = (lse - terms[1]).masked_fill_(counts.logical_not(), 0);
    const at::Tensor share = mean ? counts.sum().to(at::kFloat).reciprocal() : at::ones({}, lse.options());
    context->save_for_backward({logits, columns, counts, lse, share});
    keep_logits(context, overwrite);
    return losses.sum().mul(share);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    refuse_create_graph("cross_entropy",
                        "Compute the logits in fp32, which ATen's operations can differentiate twice.");
    const variable_list saved = saved_of(context);
    const at::Tensor dlogits = place_of_gradient(context, saved[0]);
    write_logit_gradient(dlogits, saved[0], saved[1], saved[2], saved[3], grads[0] * saved[4]);
    return {dlogits, {}, {}, {}, {}};
  }
};

} // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t reduction, int64_t ignore_index,
                         Logits logits_after) {
  if (logits.dim() != 2 || target.dim() != 1 || target.size(0) != logits.size(0) || target.scalar_type() != at::kLong) {
    throw InputError("fused", concat("cross_entropy: expected logits [rows, classes] and int64 targets [rows], got ",
                                     logits.sizes(), " and ", target.sizes(), " of type ", target.scalar_type(), '.'));
  }
  if (reduction != at::Reduction::Mean && reduction != at::Reduction::Sum) {
    throw InputError("fused", "cross_entropy: the reduction must be mean or sum.");
  }
  const bool mean = reduction == at::Reduction::Mean, overwrite = logits_after == Logits::overwrite;
  if (usable({logits}) && target.is_cpu() && logits.size(1) > 0) {
    return CrossEntropy::apply(logits, target, mean, ignore_index, overwrite);
  }
  const bool has_kernel = !logits.is_cpu() && row_kernels({logits}) != nullptr;
  if ((!has_kernel && !at::isReducedFloatingType(logits.scalar_type())) || logits.size(1) == 0) {
    return at::cross_entropy_loss(logits, target, {}, reduction, ignore_index);
  }
  if (target.is_cpu()) { // on a GPU the host would have to wait; its kernels fail for such a target
    check_targets(target.contiguous(), logits.size(1), ignore_index);
  }
  return CrossEntropyOfRows::apply(logits, target, mean, ignore_index, overwrite);
}

} // namespace trireme::fused
