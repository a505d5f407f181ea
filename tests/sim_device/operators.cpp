// The operations of the device: those that make, view and copy tensors; for all others the CPU's kernel runs on the
// kernels' mapping.
#include "capture.h"
#include "guard.h"
#include "launch.h"
#include "memory.h"
#include "timeline.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <set>

namespace trireme::sim {
namespace {

using at::Tensor;

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &device_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(type));
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef sizes, std::optional<at::MemoryFormat>) {
  const c10::DeviceGuard guard(self.device());
  auto* const impl = self.unsafeGetTensorImpl();
  c10::StorageImpl* const storage = self.storage().unsafeGetStorageImpl();
  impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(sizes));
  const size_t needed = static_cast<size_t>(impl->numel() + impl->storage_offset()) * impl->itemsize();
  if (needed > storage->nbytes()) {
    c10::DataPtr fresh = device_allocator().allocate(needed);
    if (storage->nbytes() > 0) {
      std::memcpy(kernel_pointer(fresh.get()), kernel_pointer(storage->data()), storage->nbytes());
    }
    storage->set_data_ptr_noswap(std::move(fresh));
    storage->set_nbytes(needed);
  }
  return self;
}

// CUDA takes memory that is not pinned in between for another type or shape, and the host waits for that.
bool is_async(const Tensor& on_host, const Tensor& there, bool non_blocking) {
  return non_blocking && on_host.is_contiguous() && on_host.scalar_type() == there.scalar_type() &&
         on_host.sizes() == there.sizes() && is_pinned(on_host.const_data_ptr());
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool non_blocking) {
  const std::lock_guard lock(timeline().mutex);
  if (self.numel() == 0) {
    return target;
  }
  const Tensor& there = on_device(target) ? target : self;
  const bool crosses = on_device(self) && on_device(target) && self.device() != target.device();
  const int source = self.is_cpu() ? 0 : clock_of(self.device().index(), current_stream(self.device().index()));
  if (crosses) { // as in CUDA, after the work of both current streams, and before what comes on either of them
    timeline().wait(clock_of(there.device().index(), current_stream(there.device().index())), timeline().now(source));
  }
  const Launch launch(self.is_cpu()     ? "copy to the device"
                      : target.is_cpu() ? "copy to the host"
                                        : "copy",
                      there.device().index());
  if (crosses) {
    timeline().wait(source, timeline().now(launch.stream()));
  }
  launch.touch(self, false, crosses);
  launch.touch(target, true, crosses);
  if (!on_device(self)) {
    timeline().copied.to_device += static_cast<int64_t>(target.nbytes());
    ++timeline().copied.copies_to_device;
  } else if (!on_device(target)) {
    timeline().copied.to_host += static_cast<int64_t>(target.nbytes());
    ++timeline().copied.copies_to_host;
  }
  if (on_device(self) && on_device(target)) {
    kernel_view(target).copy_(kernel_view(self));
  } else if (on_device(target)) {
    const bool async = is_async(self, target, non_blocking);
    if (async) {
      timeline().copy_from_host(launch.stream(), self.const_data_ptr(), static_cast<int64_t>(self.nbytes()));
    }
    kernel_view(target).copy_(self);
    if (!async) {
      launch.host_waits("copy from memory that is not pinned, or a blocking one");
    }
  } else if (is_async(target, self, non_blocking)) {
    const Tensor values = kernel_view(self).to(target.scalar_type()).expand(target.sizes()).contiguous();
    const auto* const begin = static_cast<const char*>(values.const_data_ptr());
    timeline().copy_to_host(launch.stream(), target.mutable_data_ptr(),
                            std::vector<char>(begin, begin + values.nbytes()));
  } else {
    launch.host_waits("copy to the host");
    target.copy_(kernel_view(self));
  }
  if (launch.is_recorded()) {
    launch.repeats([from = recorded(self), to = recorded(target), non_blocking] { copy_from(from, to, non_blocking); });
  }
  return target;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  if (on_device(target)) {
    resize_(target, self.sym_sizes(), std::nullopt);
  } else {
    target.resize_(self.sizes());
  }
  return copy_from(self, target, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  const std::lock_guard lock(timeline().mutex);
  const Launch launch("item()", self.device().index());
  launch.touch(self, false);
  launch.host_waits("item()");
  return at::native::_local_scalar_dense_cpu(kernel_view(self));
}

Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(self, size, stride, offset);
}
Tensor view(const Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}
Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
Tensor unfold(const Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(self, dim, size, step);
}
Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return at::native::set_tensor_(self, source);
}
Tensor& set_storage(Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                    c10::SymIntArrayRef stride) {
  return at::cpu::set__symint(self, storage, offset, size, stride);
}
void record_stream(Tensor& self, c10::Stream stream) {
  const std::lock_guard lock(timeline().mutex);
  timeline().recorded(reinterpret_cast<uintptr_t>(self.storage().data_ptr().get()),
                      clock_of(stream.device_index(), stream.id()));
}

// ---- everything else

using Stack = torch::jit::Stack;

// The device of the first tensor, or the current one.
int device_of_arguments(const Stack& stack, size_t begin) {
  for (size_t i = begin; i < stack.size(); ++i) {
    if (stack[i].isTensor() && on_device(stack[i].toTensor())) {
      return stack[i].toTensor().device().index();
    }
    if (stack[i].isTensorList()) {
      for (const Tensor& tensor : stack[i].toTensorVector()) {
        if (on_device(tensor)) {
          return tensor.device().index();
        }
      }
    }
    if (stack[i].isDevice() && stack[i].toDevice().has_index()) {
      return stack[i].toDevice().index();
    }
  }
  return current_device();
}

// Operations of which the host reads a result on CUDA: the shape of another one depends on it.
bool waits_on_cuda(const std::string& name, const Stack& given) {
  if (name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_") {
    for (const std::optional<Tensor>& index : given.at(1).toOptionalTensorVector()) {
      if (index && index->defined() && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte)) {
        return true;
      }
    }
    return false;
  }
  static const std::set<std::string> kNames = {"aten::nonzero",           "aten::masked_select",     "aten::_unique2",
                                               "aten::unique_dim",        "aten::bincount",          "aten::equal",
                                               "aten::repeat_interleave", "aten::unique_consecutive"};
  return kNames.contains(name);
}

/// One operation whose arguments are turned into what the CPU's kernel takes, and its results back.
class OnCpu {
 public:
  using Kernel = void (*)(const c10::OperatorHandle& op, Stack& stack);

  /// `results`: in a replay, where they are.
  OnCpu(const c10::OperatorHandle& op, Stack& stack, const std::vector<Tensor>* results = nullptr)
      : op_(op),
        schema_(op.schema()),
        stack_(stack),
        begin_(stack.size() - schema_.arguments().size()),
        device_(device_of_arguments(stack, begin_)),
        launch_(schema_.name(), device_),
        given_(stack.begin() + static_cast<std::ptrdiff_t>(begin_), stack.end()),
        replayed_(results) {
    if (launch_.is_recorded() && waits_on_cuda(schema_.name(), given_)) {
      refuse_capture_of(schema_.name() + ", for which the host waits,");
    }
  }

  void run(Kernel kernel) {
    arguments();
    kernel(op_, stack_);
    results();
    if (launch_.is_recorded()) {
      repeat(kernel);
    }
  }

 private:
  void arguments() {
    for (size_t i = 0; i < given_.size(); ++i) {
      const c10::Argument& argument = schema_.arguments()[i];
      const bool writes = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
      c10::IValue& value = stack_[begin_ + i];
      if (value.isTensor()) {
        value = as_kernel(value.toTensor(), writes);
      } else if (value.isTensorList()) {
        c10::List<Tensor> list;
        for (const Tensor& tensor : value.toTensorVector()) {
          list.push_back(as_kernel(tensor, writes));
        }
        value = list;
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<Tensor>> list;
        for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
          list.push_back(tensor ? std::optional(as_kernel(*tensor, writes)) : std::nullopt);
        }
        value = list;
      } else if (value.isDevice()) {
        value = c10::Device(at::kCPU);
      } else if (argument.type()->str() == "Generator?" || argument.type()->str() == "Generator") {
        value = value.isGenerator() ? cpu_generator(value.toGenerator()) : cpu_generator(device_);
      }
    }
  }

  void results() {
    for (const auto& [device, kernel] : written_) {
      const bool moved = device.sizes() != kernel.sizes() ||
                         (device.numel() > 0 && kernel_pointer(device.const_data_ptr()) != kernel.const_data_ptr());
      if (on_device(device) && moved) {
        resize_(device, kernel.sym_sizes(), std::nullopt);
        kernel_view(device).copy_(kernel);
      }
    }
    const size_t first = stack_.size() - schema_.returns().size();
    for (size_t r = 0; r < schema_.returns().size(); ++r) {
      c10::IValue& value = stack_[first + r];
      if (const c10::AliasInfo* alias = schema_.returns()[r].alias_info()) {
        value = argument_of(*alias);
      } else if (value.isTensor()) {
        value = to_device(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<Tensor> list;
        for (const Tensor& tensor : value.toTensorVector()) {
          list.push_back(to_device(tensor));
        }
        value = list;
      }
    }
  }

  void repeat(Kernel kernel) const {
    Stack arguments;
    for (const c10::IValue& value : given_) {
      arguments.push_back(recorded(value));
    }
    std::vector<Tensor> results;
    for (const Tensor& made : made_) {
      results.push_back(recorded(made));
    }
    launch_.repeats([op = op_, arguments, results, kernel] {
      Stack stack = arguments;
      OnCpu(op, stack, &results).run(kernel);
    });
  }

  Tensor as_kernel(const Tensor& tensor, bool writes) {
    TORCH_CHECK(!tensor.defined() || on_device(tensor) || tensor.dim() == 0 || takes_indices(),
                "sim_device: ", schema_.operator_name(),
                ": expected all tensors to be on the same device, and one of shape ", tensor.sizes(), " is on ",
                tensor.device());
    launch_.touch(tensor, false);
    Tensor kernel = kernel_view(tensor);
    if (writes && tensor.defined()) {
      launch_.touch(tensor, true);
      written_.emplace_back(tensor, kernel);
    }
    return kernel;
  }
  // As on CUDA, where indices may be on the host.
  bool takes_indices() const {
    const std::string& name = schema_.name();
    return name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_";
  }
  Tensor to_device(const Tensor& tensor) {
    if (!tensor.defined() || on_device(tensor)) {
      return tensor;
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    if (replayed_ != nullptr) {
      const Tensor& there = replayed_->at(made_.size());
      kernel_view(there).copy_(tensor);
      launch_.touch(there, true);
      return made_.emplace_back(there);
    }
    const Tensor made = empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type(), {}, device(device_), {});
    kernel_view(made).copy_(tensor);
    launch_.touch(made, true);
    return made_.emplace_back(made);
  }
  const c10::IValue& argument_of(const c10::AliasInfo& alias) const {
    TORCH_CHECK(alias.isWrite(), "sim_device: ", schema_.operator_name(),
                " returns a view: it needs a kernel of its own");
    for (size_t i = 0; i < given_.size(); ++i) {
      const c10::AliasInfo* const argument = schema_.arguments()[i].alias_info();
      if (argument != nullptr && *argument == alias) {
        return given_[i];
      }
    }
    TORCH_CHECK(false, "sim_device: ", schema_.operator_name(), " returns none of its arguments");
  }

  c10::OperatorHandle op_;
  const c10::FunctionSchema& schema_;
  Stack& stack_;
  size_t begin_;
  int device_;
  Launch launch_;
  std::vector<c10::IValue> given_;
  std::vector<std::pair<Tensor, Tensor>> written_; // of the device, and as the kernel had it
  const std::vector<Tensor>* replayed_;
  std::vector<Tensor> made_; // in order
};

c10::OperatorHandle operation(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

void same_kernel(const c10::OperatorHandle& op, Stack& stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

// What libtorch asks devices of other people for, in place of convolution, which it would cut into CUDA's.
void convolution(const c10::OperatorHandle&, Stack& stack) {
  operation("aten::convolution").redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

void convolution_backward(const c10::OperatorHandle& op, Stack& stack) {
  const size_t first = stack.size() - op.schema().arguments().size();
  const int64_t channels = stack[first].toTensor().size(1);
  stack.insert(stack.begin() + static_cast<std::ptrdiff_t>(first) + 3,
               c10::IValue(std::vector<int64_t>{channels})); // the bias's sizes
  operation("aten::convolution_backward").redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

template <OnCpu::Kernel kernel>
void run_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  const std::lock_guard lock(timeline().mutex);
  OnCpu(op, *stack).run(kernel);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&run_on_cpu<&convolution>>());
  library.impl("convolution_backward_overrideable",
               torch::CppFunction::makeFromBoxedFunction<&run_on_cpu<&convolution_backward>>());
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("unfold", &unfold);
  library.impl("resize_", &resize_);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("record_stream", &record_stream);
  // Has a composition of other operations for devices without a kernel, which rounds in another way.
  library.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&run_on_cpu<&same_kernel>>());
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu<&same_kernel>>());
}
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
// libtorch's list of what has another signature in single precision names them without a namespace.
using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define TRIREME_SIM_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TRIREME_SIM_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_LOWER_PRECISION_FP(TRIREME_SIM_LOWER)
  AT_FORALL_FP32(TRIREME_SIM_FP32)
#define TRIREME_SIM_FP32_SUMS(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(TRIREME_SIM_FP32_SUMS) // softmax among them
#define TRIREME_SIM_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(TRIREME_SIM_PROMOTE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
}

} // namespace

} // namespace trireme::sim
