#include "launch.h"

#include "memory.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>

namespace trireme::sim {

using at::Tensor;

Tensor recorded(const Tensor& tensor) {
  if (!tensor.defined()) {
    return tensor;
  }
  if (!on_device(tensor)) {
    return is_pinned(tensor.const_data_ptr())
               ? at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), tensor.options())
               : tensor.clone();
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::Storage& storage = tensor.storage();
  return at::empty({0}, tensor.options())
      .set_(c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(),
                         c10::DataPtr(const_cast<void*>(storage.data()), tensor.device()), nullptr,
                         /*resizable=*/false),
            tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

c10::IValue recorded(const c10::IValue& value) {
  if (value.isTensor()) {
    return recorded(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) {
      list.push_back(recorded(tensor));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(recorded(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

Tensor kernel_view(const Tensor& tensor) {
  if (!on_device(tensor)) {
    return tensor;
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::TensorOptions options = tensor.options().device(at::kCPU);
  if (tensor.numel() == 0) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  }
  const size_t bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.dtype().itemsize());
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                       c10::DataPtr(kernel_pointer(tensor.const_data_ptr()), at::kCPU), c10::GetAllocator(at::kCPU),
                       /*resizable=*/true);
  return at::empty({0}, options).set_(storage, 0, tensor.sizes(), tensor.strides());
}

namespace {

void touch_all(const char* kernel, int stream, const std::vector<Touched>& touched) {
  for (const Touched& one : touched) {
    const auto begin = reinterpret_cast<uintptr_t>(one.pointer);
    timeline().touch(kernel, stream, begin, begin + static_cast<uintptr_t>(one.bytes), one.writes);
  }
}

} // namespace

void launch(const char* kernel, const std::vector<Touched>& touched) {
  launch(kernel, touched, nullptr);
}

void launch(const char* kernel, const std::vector<Touched>& touched, const std::function<void()>& work) {
  const std::lock_guard lock(timeline().mutex);
  int index = current_device();
  for (const Touched& one : touched) {
    index = is_device_pointer(one.pointer) ? device_of(one.pointer) : index;
  }
  const Launch launched(kernel, index);
  touch_all(kernel, launched.stream(), touched);
  if (work) {
    work();
  }
  if (launched.is_recorded() && work) {
    launched.repeats([kernel, index, touched, work] {
      touch_all(kernel, clock_of(index, current_stream(index)), touched);
      work();
    });
  }
}

} // namespace trireme::sim
