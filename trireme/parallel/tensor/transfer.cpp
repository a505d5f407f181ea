#include <trireme/parallel/tensor/transfer.h>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace trireme::tensor {
namespace {

/// Number of indices of the dims before `dim`.
int64_t samples_of(const at::Tensor& x, int64_t dim) {
  int64_t samples = 1;
  for (int64_t d = 0; d < dim; ++d) {
    samples *= x.size(d);
  }
  return samples;
}

bool travels_by_sample(const at::Tensor& whole, int64_t samples) {
  return samples <= 1 || static_cast<int64_t>(whole.nbytes()) / samples >= piece_sizes(whole.is_cpu()).sample_bytes;
}

} // namespace

at::Tensor Transfer::wait() {
  for (comm::Work& work : works_) {
    work.wait();
  }
  kept_.clear();
  return result_;
}

// Not a view to autograd: ordinary layers add a bias in place to their input.
at::Tensor allocate(const comm::Group& ranks, at::IntArrayRef sizes, const at::Tensor& like) {
  const at::AutoDispatchBelowADInplaceOrView no_view_tracking;
  return ranks.allocate(c10::multiply_integers(sizes), like.scalar_type(), like.device()).view(sizes);
}

Transfer start_sum(const at::Tensor& y, const comm::Group& ranks) {
  return {y, {ranks.all_reduce(y, comm::ReduceOp::sum, "sum of a layer")}};
}

Transfer start_join(const at::Tensor& x, const comm::Group& ranks, int64_t dim) {
  at::DimVector sizes(x.sizes());
  sizes[dim] *= ranks.size();
  const int64_t samples = samples_of(x, dim);
  const at::Tensor whole = allocate(ranks, sizes, x);
  std::vector<comm::Work> works;
  if (travels_by_sample(whole, samples)) {
    const at::Tensor from = x.contiguous().view({samples, x.numel() / samples});
    const at::Tensor to = whole.view({samples, whole.numel() / samples});
    for (int64_t sample = 0; sample < samples; ++sample) {
      works.push_back(ranks.all_gather(to[sample], from[sample], "parts of a layer"));
    }
    return {whole, std::move(works), {from}};
  }
  at::DimVector blocks(x.sizes());
  blocks.insert(blocks.begin(), ranks.size());
  const at::Tensor all = allocate(ranks, blocks, x);
  all[ranks.rank()].copy_(x);
  ranks.all_gather(all.view({-1}), all[ranks.rank()].view({-1}), "parts of a layer").wait();
  whole.copy_(all.movedim(0, dim).flatten(dim, dim + 1));
  return {whole, {}};
}

Transfer start_sum_to_part(const at::Tensor& x, const comm::Group& ranks, int64_t dim) {
  at::DimVector sizes(x.sizes());
  sizes[dim] /= ranks.size();
  const int64_t samples = samples_of(x, dim);
  const at::Tensor mine = allocate(ranks, sizes, x);
  std::vector<comm::Work> works;
  if (travels_by_sample(x, samples)) {
    const at::Tensor from = x.contiguous().view({samples, x.numel() / samples});
    const at::Tensor to = mine.view({samples, mine.numel() / samples});
    for (int64_t sample = 0; sample < samples; ++sample) {
      works.push_back(ranks.reduce_scatter(to[sample], from[sample], comm::ReduceOp::sum, "sum of a layer, in parts"));
    }
    return {mine, std::move(works), {from}};
  }
  const at::Tensor blocks = x.unflatten(dim, {ranks.size(), x.size(dim) / ranks.size()}).movedim(dim, 0);
  const at::Tensor all = allocate(ranks, blocks.sizes(), x);
  all.copy_(blocks);
  works.push_back(
      ranks.reduce_scatter(mine.view({-1}), all.view({-1}), comm::ReduceOp::sum, "sum of a layer, in parts"));
  return {mine, std::move(works), {all}};
}

} // namespace trireme::tensor
