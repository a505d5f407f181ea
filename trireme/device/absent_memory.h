#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace trireme::device {

/// Whether a tensor's values can be read: not if it is a sharded parameter that is not gathered, or of a layer on
/// another stage.
bool has_memory(const at::Tensor& tensor);

/// Frees the memory of a storage. Its tensors keep their shapes; reading one throws a c10::Error with message `why`.
void drop_memory(const c10::Storage& storage, at::Device device, const std::string& why);

/// Undoes the effect of drop_memory() on reading: the storage is about to get memory again.
void allow_reading(const c10::Storage& storage);

/// Gives a tensor a new storage without memory, see drop_memory(). Views of its previous storage keep that one.
void take_memory(at::Tensor tensor, const std::string& why);

} // namespace trireme::device
