#include <trireme/horovod/adasum.h>

#include <trireme/base/error.h>

#include <ATen/ATen.h>

namespace trireme::horovod {
namespace {

std::string axis_name(int round) {
  return concat("adasum", round);
}

// Squared sums of low-precision tensors would overflow.
at::Tensor inner_product(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) * b.to(at::kDouble)).sum();
}

} // namespace

Adasum::Adasum(const comm::Group& ranks) {
  std::vector<mesh::Axis> axes;
  int size = 1;
  for (; size < ranks.size(); size *= 2) {
    axes.push_back({axis_name(rounds_++), 2});
  }
  if (size != ranks.size()) {
    throw InputError("horovod", concat("Adasum over ", ranks.size(), " ranks: their number is to be a power of two"), "Use Op::average, or another number of ranks.");
  }
  if (rounds_ > 0) {
    mesh_.emplace(ranks, mesh::MeshShape(std::move(axes)));
  }
}

at::Tensor Adasum::combine(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor ab = inner_product(a, b), aa = inner_product(a, a), bb = inner_product(b, b);
  const auto share = [&](const at::Tensor& own) { return at::where(own == 0, at::ones_like(own), 1 - ab / (2 * own)); };
  return (a.to(at::kDouble) * share(aa) + b.to(at::kDouble) * share(bb)).to(a.scalar_type());
}

void Adasum::run(at::Tensor tensor) const {
  for (int round = rounds_ - 1; round >= 0; --round) { // neighbours first
    const comm::Group& pair = mesh_->group(axis_name(round));
    const at::Tensor both = pair.allocate(2 * tensor.numel(), tensor.scalar_type(), tensor.device());
    const at::Tensor mine = pair.allocate(tensor.numel(), tensor.scalar_type(), tensor.device());
    mine.copy_(tensor.reshape(-1));
    pair.all_gather(both, mine, "adasum").wait();
    tensor.copy_(combine(both.slice(0, 0, tensor.numel()), both.slice(0, tensor.numel())).view(tensor.sizes()));
  }
}

} // namespace trireme::horovod
