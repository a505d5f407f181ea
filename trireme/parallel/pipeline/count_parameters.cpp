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

std::vector<std::string> parameter_names(const torch::nn::Module& module) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      names.push_back(item.key());
    }
  }
  return names;
}

namespace {

using Make = std::function<std::shared_ptr<torch::nn::Module>()>;

template <typename Look>
auto look_without_memory(const Make& make, const Look& look) {
  const recompute::RandomGuard random(recompute::RandomState::of({}));
  try {
    const MetaDeviceGuard guard;
    return look(*make());
  } catch (const std::exception&) {
    // The constructor reads values: make it on a real device.
  }
  return look(*make());
}

} // namespace

int64_t count_parameters(const Make& make) {
  return look_without_memory(make, [](const torch::nn::Module& module) { return count_parameters(module); });
}

std::vector<std::string> parameter_names(const Make& make) {
  return look_without_memory(make, [](const torch::nn::Module& module) { return parameter_names(module); });
}

} // namespace trireme::pipeline
