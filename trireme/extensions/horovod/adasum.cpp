#include <trireme/extensions/horovod/adasum.h>

#include <ATen/ATen.h>

#include <vector>

namespace trireme::horovod {
namespace {

// Sums of squares of low-precision tensors would overflow.
at::Tensor inner_product(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) * b.to(at::kDouble)).sum();
}

} // namespace

at::Tensor adasum_of(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor ab = inner_product(a, b), aa = inner_product(a, a), bb = inner_product(b, b);
  const auto share = [&](const at::Tensor& own) { return at::where(own == 0, at::ones_like(own), 1 - ab / (2 * own)); };
  return (a.to(at::kDouble) * share(aa) + b.to(at::kDouble) * share(bb)).to(a.scalar_type());
}

void adasum(const comm::Group& ranks, at::Tensor tensor) {
  if (ranks.size() == 1 || tensor.numel() == 0) {
    return;
  }
  const at::Tensor mine = ranks.allocate(tensor.numel(), tensor.scalar_type(), tensor.device());
  const at::Tensor all = ranks.allocate(tensor.numel() * ranks.size(), tensor.scalar_type(), tensor.device());
  mine.copy_(tensor.reshape(-1));
  ranks.all_gather(all, mine, "adasum").wait();
  std::vector<at::Tensor> parts = all.view({ranks.size(), tensor.numel()}).unbind(0);
  while (parts.size() > 1) {
    std::vector<at::Tensor> pairs;
    for (size_t i = 0; i < parts.size(); i += 2) {
      pairs.push_back(adasum_of(parts[i], parts[i + 1]));
    }
    parts = std::move(pairs);
  }
  tensor.copy_(parts.front().view(tensor.sizes()));
}

} // namespace trireme::horovod
