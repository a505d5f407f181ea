#include <trireme/parallel/tensor/cross_entropy.h>

#include <trireme/base/error.h>
#include <trireme/fused/fused.h>
#include <trireme/fused/logit_rows.h>
#include <trireme/fused/rows.h>
#include <trireme/kernels/fused_kernels.h>
#include <trireme/parallel/tensor/transfer.h>

#include <ATen/ATen.h>
#include <torch/autograd.h>

namespace trireme::tensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kElsewhere = kernels::CrossEntropyArgs::kElsewhere;
/// The local target of an ignored row: neither a class nor kElsewhere.
constexpr int64_t kIgnored = -2;

/// Maps the targets to columns of this rank.
at::Tensor local_targets(const at::Tensor& target, const RankRange& part, int64_t ignore_index) {
  const at::Tensor inside = target.ge(part.begin).logical_and_(target.lt(part.end));
  const at::Tensor column = at::where(inside, target - part.begin, at::full_like(target, kElsewhere));
  return at::where(target.eq(ignore_index), at::full_like(target, kIgnored), column).contiguous();
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& any_logits, const at::Tensor& target,
                            const RankRange& part, const comm::Group& ranks, bool mean, int64_t ignore_index) {
    const at::Tensor logits = any_logits.contiguous();
    const at::Tensor column = local_targets(target, part, ignore_index);
    const at::Tensor mine = fused::logit_row_terms(logits, column);
    const at::Tensor all = at::empty({ranks.size(), 2, mine.size(1)}, mine.options());
    ranks.all_gather(all.view({-1}), mine.view({-1}), "terms of the cross-entropy").wait();
    const at::Tensor lse = at::logsumexp(all.select(1, 0), 0);
    const at::Tensor counts = target.ne(ignore_index);
    const at::Tensor losses = at::where(counts, lse - all.select(1, 1).sum(0), at::zeros_like(lse));
    const at::Tensor sum = losses.sum(0, false, at::kDouble);
    const at::Tensor share = mean ? counts.sum().to(at::kDouble).reciprocal() : at::ones({}, sum.options());
    context->save_for_backward({logits, column, lse, share});
    context->saved_data["gone"] = false;
    return sum.mul(share).to(lse.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    fused::refuse_create_graph("cross_entropy", kOnOneRank);
    if (context->saved_data["gone"].toBool()) {
      throw Error("tensor parallel",
                  "cross_entropy: second backward, but the first one overwrote the logits with their gradient.",
                  "Compute the loss again for a second backward; retain_graph does not keep the logits.");
    }
    context->saved_data["gone"] = true;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor logits = saved[0].detach();
    fused::write_logit_gradient(logits, logits, saved[1], saved[1].ne(kIgnored), saved[2],
                                grads[0].to(at::kDouble).mul(saved[3]));
    saved[0].unsafeGetTensorImpl()->bump_version(); // other code that keeps them for backward gets an error
    return {logits, {}, {}, {}, {}, {}};
  }
};

void check(const at::Tensor& logits, const at::Tensor& target, int64_t classes, const RankRange& part,
           int64_t ignore_index) {
  if (logits.dim() != 2 || target.dim() != 1 || target.size(0) != logits.size(0) || target.scalar_type() != at::kLong ||
      logits.size(1) != part.size()) {
    throw InputError("tensor parallel",
                     concat("cross_entropy: expected logits [rows, ", part.size(), "], this rank's part of ", classes,
                            " classes, and int64 targets [rows], got ", logits.sizes(), " and ", target.sizes(),
                            " of type ", target.scalar_type()));
  }
  if (target.is_cpu()) { // on a GPU the host would have to wait
    const at::Tensor wrong = target.ne(ignore_index).logical_and_(target.lt(0).logical_or_(target.ge(classes)));
    if (wrong.any().item<bool>()) {
      throw InputError("tensor parallel",
                       concat("cross_entropy: target ", target.masked_select(wrong)[0].item<int64_t>(),
                              " is outside [0, ", classes, ")"),
                       "The data hold a class (a token) that the model's last layer does not have.");
    }
  }
}

} // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t classes, const Ranks& ranks,
                         int64_t reduction, int64_t ignore_index) {
  if (reduction != at::Reduction::Mean && reduction != at::Reduction::Sum) {
    throw InputError("tensor parallel", "cross_entropy: the reduction must be mean or sum.");
  }
  if (ranks.alone()) { // fused::cross_entropy checks its input
    return fused::cross_entropy(logits, target, reduction, ignore_index, fused::Logits::overwrite);
  }
  const RankRange part = part_of(classes, ranks);
  check(logits, target, classes, part, ignore_index);
  return CrossEntropy::apply(logits, target, part, ranks.group, reduction == at::Reduction::Mean, ignore_index);
}

} // namespace trireme::tensor
