#include <trireme/fused/logit_rows.h>

#include <trireme/fused/rows.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace trireme::fused {
namespace {

constexpr int64_t kIgnored = -100;

at::ScalarType type_of_sums(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

kernels::CrossEntropyArgs kernel_args(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& lse) {
  kernels::CrossEntropyArgs args;
  args.logits = logits.const_data_ptr();
  args.target = target.const_data_ptr<int64_t>();
  args.ignore = kIgnored;
  args.lse = lse.mutable_data_ptr<float>();
  args.columns = logits.size(1);
  args.element = element_of(logits);
  args.stride = logits.stride(0);
  return args;
}

/// The kernels that read such logits; nullptr: ATen's operations do it.
const RowKernels* kernels_of(const at::Tensor& logits) {
  const bool in_rows = logits.stride(1) == 1 && logits.stride(0) >= logits.size(1);
  return in_rows ? row_kernels({logits}) : nullptr;
}

/// Calls f(begin, length) for ranges of rows of `logits_at_once` logits.
template <class F>
void for_rows(const at::Tensor& logits, int64_t logits_at_once, const F& f) {
  const int64_t rows = logits.size(0),
                at_once = std::max<int64_t>(1, logits_at_once / std::max<int64_t>(1, logits.size(1)));
  for (int64_t begin = 0; begin < rows; begin += at_once) {
    f(begin, std::min(at_once, rows - begin));
  }
}

} // namespace

at::Tensor logit_row_terms(const at::Tensor& logits, const at::Tensor& columns, int64_t at_once) {
  const at::ScalarType type = type_of_sums(logits);
  const at::Tensor terms = at::zeros({2, logits.size(0)}, logits.options().dtype(type));
  const at::Tensor lse = terms.select(0, 0), found = terms.select(0, 1);
  if (logits.size(1) == 0) {
    lse.fill_(-std::numeric_limits<double>::infinity());
    return terms;
  }
  if (const RowKernels* const there = kernels_of(logits)) {
    kernels::CrossEntropyArgs args = kernel_args(logits, columns, lse);
    args.loss = found.mutable_data_ptr<float>();
    args.ignore = std::numeric_limits<int64_t>::min(); // a row without a target has a log sum exp too
    there->cross_entropy(args, logits.size(0), logits.device());
    found.sub_(lse).neg_(); // a negative column's loss is lse alone
    return terms;
  }
  for_rows(logits, at_once, [&](int64_t begin, int64_t length) {
    const at::Tensor x = logits.narrow(0, begin, length).to(type);
    const at::Tensor column = columns.narrow(0, begin, length);
    lse.narrow(0, begin, length).copy_(at::logsumexp(x, 1));
    const at::Tensor at_column = x.gather(1, column.clamp_min(0).unsqueeze(1)).squeeze(1);
    found.narrow(0, begin, length).copy_(at::where(column.ge(0), at_column, at::zeros_like(at_column)));
  });
  return terms;
}

void write_logit_gradient(const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& columns,
                          const at::Tensor& counts, const at::Tensor& lse, const at::Tensor& factor, int64_t at_once) {
  if (logits.size(1) == 0) {
    return;
  }
  if (const RowKernels* const there = kernels_of(logits)) {
    const at::Tensor target = at::where(counts, columns, at::full({}, kIgnored, columns.options()));
    const at::Tensor scale = factor.to(at::kFloat);
    kernels::CrossEntropyArgs args = kernel_args(logits, target, lse);
    args.dlogits = gradient.mutable_data_ptr();
    args.device_scale = scale.const_data_ptr<float>();
    there->cross_entropy_backward(args, logits.size(0), logits.device());
    return;
  }
  for_rows(logits, at_once, [&](int64_t begin, int64_t length) {
    const auto rows = [&](const at::Tensor& of_all) { return of_all.narrow(0, begin, length).unsqueeze(1); };
    const at::Tensor column = rows(columns);
    at::Tensor x = logits.narrow(0, begin, length).to(lse.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    x.sub_(rows(lse)).exp_();
    x.scatter_add_(1, column.clamp_min(0), column.ge(0).to(x.scalar_type()).neg_());
    gradient.narrow(0, begin, length).copy_(x.mul_(rows(counts)).mul_(factor));
  });
}

} // namespace trireme::fused
