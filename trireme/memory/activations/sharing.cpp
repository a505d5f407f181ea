#include <trireme/memory/activations/sharing.h>

#include <trireme/memory/activations/options.h>
#include <trireme/memory/activations/storage_tensor.h>

#include <ATen/ops/empty.h>

#include <algorithm>

namespace trireme::activations {

at::Tensor cut_share(const Sharing& sharing, const c10::Storage& storage) {
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  const int64_t each = share_of(bytes, sharing.ranks);
  const int64_t begin = std::min(bytes, sharing.rank * each);
  const int64_t own = std::min(bytes - begin, each);
  at::Tensor share = at::empty({each}, at::TensorOptions(at::kByte).device(storage.device()));
  share.narrow(0, 0, own).copy_(storage_tensor(storage, at::kByte, {own}, {1}, begin));
  share.narrow(0, own, each - own).zero_();
  return share;
}

at::Tensor checksum_of(const c10::Storage& storage, int64_t bytes) {
  return storage_tensor(storage, at::kLong, {bytes / static_cast<int64_t>(sizeof(int64_t))}, {1}, 0).sum();
}

} // namespace trireme::activations
