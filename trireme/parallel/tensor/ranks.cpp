#include <trireme/parallel/tensor/ranks.h>

#include <trireme/parallel/tensor/exchange.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace trireme::tensor {
at::Tensor enter(const at::Tensor& x, const Ranks& ranks) {
  return ranks.splits_sequence() ? gather_parts(x, ranks.group, kSequenceDim) : copy_to_ranks(x, ranks.group);
}

at::Tensor leave(const at::Tensor& x, const Ranks& ranks) {
  return ranks.splits_sequence() ? sum_to_parts(x, ranks.group, kSequenceDim) : sum_over_ranks(x, ranks.group);
}

RankRange part_of(int64_t size, int rank, int ranks) {
  const int64_t each = size / ranks;
  const int64_t larger = size % ranks;
  const int64_t begin = rank * each + std::min<int64_t>(rank, larger);
  return {begin, begin + each + (rank < larger ? 1 : 0)};
}

at::Tensor join_last_dim(const at::Tensor& x, int64_t size, const Ranks& ranks) {
  if (ranks.alone()) {
    return x;
  }
  const int64_t widest = part_of(size, 0, ranks.group.size()).size();
  const at::Tensor all = join_parts(at::constant_pad_nd(x, {0, widest - x.size(-1)}), ranks.group, x.dim() - 1);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks.group.size(); ++rank) {
    parts.push_back(all.narrow(-1, rank * widest, part_of(size, rank, ranks.group.size()).size()));
  }
  return at::cat(parts, -1);
}

} // namespace trireme::tensor
