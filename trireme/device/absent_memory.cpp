#include <trireme/device/absent_memory.h>

#include <ATen/ops/empty.h>
#include <torch/version.h>

namespace trireme::device {
namespace {

/// Undoes release_data_and_set_meta_custom_data_ptr_error_msg_(). Until libtorch 2.11 there is no public function for
/// it; an explicit instantiation may name the private flag.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12
void allow(c10::StorageImpl& storage);
template <bool c10::StorageImpl::* refuses>
struct Reading {
  friend void allow(c10::StorageImpl& storage) { storage.*refuses = false; }
};
template struct Reading<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
#else
void allow(c10::StorageImpl& storage) {
  storage.clear_data_ptr_access_error_msg_();
}
#endif

} // namespace

bool has_memory(const at::Tensor& tensor) {
  return tensor.numel() == 0 || tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
}

void drop_memory(const c10::Storage& storage, at::Device device, const std::string& why) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  impl.set_data_ptr_noswap(at::DataPtr(nullptr, device));
  impl.release_data_and_set_meta_custom_data_ptr_error_msg_(why);
}

void allow_reading(const c10::Storage& storage) {
  allow(*storage.unsafeGetStorageImpl());
}

void take_memory(at::Tensor tensor, const std::string& why) {
  const c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.nbytes(), at::DataPtr(nullptr, tensor.device()),
                             nullptr, /*resizable=*/false);
  tensor.set_data(at::empty({0}, tensor.options().requires_grad(false))
                      .set_(storage, 0, tensor.sizes(), c10::contiguous_strides(tensor.sizes())));
  drop_memory(storage, tensor.device(), why);
}

} // namespace trireme::device
