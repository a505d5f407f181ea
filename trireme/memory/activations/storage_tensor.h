#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>

#include <cstdint>

namespace trireme::activations {

/// A tensor on this memory, offset in elements, without graph or relation to its other tensors.
inline at::Tensor storage_tensor(const c10::Storage& storage, at::ScalarType type, at::IntArrayRef sizes,
                                 at::IntArrayRef strides, int64_t offset) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions(type).device(storage.device()));
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(storage);
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(sizes, strides);
  return tensor;
}

} // namespace trireme::activations
