#include <trireme/extensions/server/sparse_rows.h>

#include <ATen/Parallel.h>
#include <torch/utils.h>

#include <algorithm>

namespace trireme::parallel::server {
namespace {

// ORs a row's words without their signs, so that -0 counts as 0.
template <typename Word>
void find_values(const at::Tensor& rows, bool* found) {
  constexpr auto kNoSign = static_cast<Word>(static_cast<Word>(~Word{0}) >> 1);
  const int64_t width = rows.size(1);
  const auto* const data = static_cast<const Word*>(rows.const_data_ptr());
  const int64_t at_once = std::max<int64_t>(1, at::internal::GRAIN_SIZE / std::max<int64_t>(1, width));
  at::parallel_for(0, rows.size(0), at_once, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const Word* const words = data + row * width;
      Word any = 0;
      for (int64_t i = 0; i < width; ++i) {
        any = static_cast<Word>(any | words[i]);
      }
      found[row] = (any & kNoSign) != 0;
    }
  });
}

} // namespace

at::Tensor rows_with_values(const at::Tensor& rows) {
  if (!rows.is_cpu() || !rows.is_contiguous()) {
    return rows.ne(0).any(1).nonzero().view({-1});
  }
  const at::Tensor found = torch::empty({rows.size(0)}, at::kBool);
  rows.element_size() == sizeof(uint32_t) ? find_values<uint32_t>(rows, found.mutable_data_ptr<bool>())
                                          : find_values<uint16_t>(rows, found.mutable_data_ptr<bool>());
  return found.nonzero().view({-1});
}

SparseRows::SparseRows(const at::Tensor& gradient)
    : gradient_(gradient.flatten(1)),
      is_touched_(torch::zeros({gradient.size(0)}, at::kBool)),
      changed_at_(torch::zeros({gradient.size(0)}, at::kLong)) {}

void SparseRows::begin_sum() {
  gradient_.index_fill_(0, touched(), 0);
  is_touched_.zero_();
}

void SparseRows::add(const at::Tensor& numbers, const at::Tensor& rows) {
  gradient_.index_copy_(0, numbers, gradient_.index_select(0, numbers).add_(rows)); // each row occurs once
  is_touched_.index_fill_(0, numbers, true);
}

at::Tensor SparseRows::touched() const {
  return is_touched_.nonzero().view({-1});
}

at::Tensor SparseRows::gradients() const {
  return gradient_.index_select(0, touched()).flatten();
}

void SparseRows::change_touched(int64_t version) {
  changed_at_.index_fill_(0, touched(), version);
}

void SparseRows::change_all(int64_t version) {
  changed_at_.fill_(version);
}

at::Tensor SparseRows::since(int64_t version) const {
  return changed_at_.gt(version).nonzero().view({-1});
}

} // namespace trireme::parallel::server
