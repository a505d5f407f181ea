#include <trireme/shards/data_parallel/module_buffers.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace trireme::parallel {

ModuleBuffers::ModuleBuffers(const std::vector<at::Tensor>& buffers, comm::Group group) : group_(std::move(group)) {
  if (group_.size() == 1) {
    return;
  }
  std::set<const void*> seen;
  for (const at::Tensor& buffer : buffers) {
    if (!buffer.defined() || buffer.numel() == 0 || !seen.insert(buffer.unsafeGetTensorImpl()).second) {
      continue;
    }
    const auto same = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& kind) {
      return kind.tensors.front().scalar_type() == buffer.scalar_type() &&
             kind.tensors.front().device() == buffer.device();
    });
    (same == kinds_.end() ? kinds_.emplace_back() : *same).tensors.push_back(buffer);
  }
  for (Kind& kind : kinds_) {
    const int64_t numel = std::accumulate(kind.tensors.begin(), kind.tensors.end(), int64_t{0},
                                          [](int64_t sum, const at::Tensor& buffer) { return sum + buffer.numel(); });
    const at::Tensor& first = kind.tensors.front();
    kind.flat = group_.allocate(numel, first.scalar_type(), first.device());
  }
}

void ModuleBuffers::broadcast(int root) const {
  const at::NoGradGuard no_grad;
  // Copies to or from the message; the root's buffers do not change.
  const auto copy = [](const Kind& kind, bool out) {
    int64_t begin = 0;
    for (const at::Tensor& buffer : kind.tensors) {
      const at::Tensor part = kind.flat.slice(0, begin, begin + buffer.numel()).view(buffer.sizes());
      const at::Tensor values =
          buffer.variable_data(); // does not bump the version: graphs that saved the buffer stay valid
      (out ? values : part).copy_(out ? part : values);
      begin += buffer.numel();
    }
  };
  std::vector<comm::Work> works;
  for (const Kind& kind : kinds_) {
    if (group_.rank() == root) {
      copy(kind, false);
    }
    works.push_back(group_.broadcast(kind.flat, root, "module buffers"));
  }
  for (size_t i = 0; i < kinds_.size(); ++i) {
    works[i].wait();
    if (group_.rank() != root) {
      copy(kinds_[i], true);
    }
  }
}

} // namespace trireme::parallel
