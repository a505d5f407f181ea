#include <trireme/parallel/pipeline/count_parameters.h>

#include <trireme/memory/recompute/state.h>

#include <torch/library.h>
#include <torch/nn/module.h>

#include <exception>
#include <unordered_set>

namespace trireme::pipeline {
namespace {

// A key that intercepts every operator of a thread while it is included; libtorch registers nothing for it.
// (DeferredInit marks split weights, parallel/tensor/split_mark.h.)
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

bool is_device(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::OptionalType) {
    return type->castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::DeviceObjType;
  }
  return type->kind() == c10::TypeKind::DeviceObjType;
}

void redirect(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_device(arguments[i].type())) {
      (*stack)[first + i] = c10::Device(c10::kMeta);
    }
  }
  const c10::impl::ExcludeDispatchKeyGuard once(kKey);
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&redirect>());
}

} // namespace

MetaDeviceGuard::MetaDeviceGuard() : guard_(kKey) {}

int64_t count_parameters(const torch::nn::Module& module) {
  std::unordered_set<const c10::TensorImpl*> seen;
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
      count += parameter.numel();
    }
  }
  return count;
}

int64_t count_parameters(const std::function<std::shared_ptr<torch::nn::Module>()>& make) {
  const recompute::RandomGuard random(recompute::RandomState::of({}));
  try {
    const MetaDeviceGuard guard;
    return count_parameters(*make());
  } catch (const std::exception&) {
    // The constructor reads values: make it on a real device.
  }
  return count_parameters(*make());
}

} // namespace trireme::pipeline
