#include <trireme/parallel/tensor/cross_entropy.h>

#include <trireme/base/error.h>
#include <trireme/fused/fused.h>
#include <trireme/fused/linear_cross_entropy.h>
#include <trireme/fused/logit_rows.h>
#include <trireme/fused/rows.h>
#include <trireme/kernels/fused_kernels.h>
#include <trireme/parallel/tensor/split_mark.h>
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

/// The terms of all ranks' columns from those of each rank's, [2, N].
at::Tensor join_terms(const at::Tensor& mine, const comm::Group& ranks) {
  const at::Tensor all = at::empty({ranks.size(), 2, mine.size(1)}, mine.options());
  ranks.all_gather(all.view({-1}), mine.view({-1}), "terms of the cross-entropy").wait();
  return at::stack({at::logsumexp(all.select(1, 0), 0), all.select(1, 1).sum(0)});
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& any_logits, const at::Tensor& target,
                            const RankRange& part, const comm::Group& ranks, bool mean, int64_t ignore_index) {
    const at::Tensor logits = any_logits.contiguous();
    const at::Tensor column = local_targets(target, part, ignore_index);
    const at::Tensor terms = join_terms(fused::logit_row_terms(logits, column), ranks);
    const at::Tensor lse = terms[0];
    const at::Tensor counts = target.ne(ignore_index);
    const at::Tensor losses = at::where(counts, lse - terms[1], at::zeros_like(lse));
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

void check_reduction(int64_t reduction) {
  if (reduction != at::Reduction::Mean && reduction != at::Reduction::Sum) {
    throw InputError("tensor parallel", "cross_entropy: the reduction must be mean or sum.");
  }
}

void check_targets(const at::Tensor& target, int64_t classes, int64_t ignore_index) {
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

void check(const at::Tensor& logits, const at::Tensor& target, int64_t classes, const RankRange& part,
           int64_t ignore_index) {
  if (logits.dim() != 2 || target.dim() != 1 || target.size(0) != logits.size(0) || target.scalar_type() != at::kLong ||
      logits.size(1) != part.size()) {
    throw InputError("tensor parallel",
                     concat("cross_entropy: expected logits [rows, ", part.size(), "], this rank's part of ", classes,
                            " classes, and int64 targets [rows], got ", logits.sizes(), " and ", target.sizes(),
                            " of type ", target.scalar_type()));
  }
  check_targets(target, classes, ignore_index);
}

} // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t classes, const Ranks& ranks,
                         int64_t reduction, int64_t ignore_index) {
  check_reduction(reduction);
  if (ranks.alone()) { // fused::cross_entropy checks its input
    return fused::cross_entropy(logits, target, reduction, ignore_index, fused::Logits::overwrite);
  }
  const RankRange part = part_of(classes, ranks);
  check(logits, target, classes, part, ignore_index);
  return CrossEntropy::apply(logits, target, part, ranks.group, reduction == at::Reduction::Mean, ignore_index);
}

namespace {

fused::LogitCut cut_of(const at::Tensor& x, int64_t rows, int64_t classes, const Ranks& ranks, int64_t most_bytes) {
  const int64_t most_columns = part_of(classes, 0, ranks.group.size()).size(); // every rank cuts the rows alike
  return fused::cut_logits(rows, most_columns, fused::product_type(x), x.device(), most_bytes);
}

} // namespace

bool takes_chunks(const at::Tensor& x, const at::Tensor& weight, int64_t rows, int64_t classes, const Ranks& ranks) {
  return !is_marked(weight) &&
         fused::takes_chunks(x, weight, cut_of(x, rows, classes, ranks, fused::kLogitChunkBytes), rows);
}

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target,
                                int64_t classes, const Ranks& ranks, int64_t reduction, int64_t ignore_index,
                                int64_t most_bytes) {
  check_reduction(reduction);
  const at::Tensor rows = enter(x, ranks).reshape({-1, x.size(-1)});
  const RankRange part = part_of(classes, ranks);
  if (target.dim() != 1 || target.size(0) != rows.size(0) || target.scalar_type() != at::kLong ||
      weight.size(0) != part.size()) {
    throw InputError("tensor parallel",
                     concat("linear_cross_entropy: expected int64 targets [", rows.size(0), "] and a weight of ",
                            part.size(), " rows, this rank's part of ", classes, " classes, got ", target.sizes(),
                            " of type ", target.scalar_type(), " and ", weight.sizes()));
  }
  check_targets(target, classes, ignore_index);
  const at::Tensor counts = target.ne(ignore_index);
  fused::ClassColumns columns = {local_targets(target, part, ignore_index), counts, {}};
  if (ranks.alone()) {
    // A class past the columns must stay one: a negative one would be another rank's.
    columns.column = target.masked_fill(target.lt(0), classes).masked_fill_(counts.logical_not(), 0);
  } else {
    columns.join = [group = ranks.group](const at::Tensor& terms) { return join_terms(terms, group); };
  }
  fused::LogitCut cut = cut_of(x, target.numel(), classes, ranks, most_bytes);
  cut.padding = fused::cut_logits(target.numel(), part.size(), fused::product_type(x), x.device(), most_bytes).padding;
  return fused::linear_cross_entropy(rows, weight, columns, reduction == at::Reduction::Mean, cut);
}

} // namespace trireme::tensor
