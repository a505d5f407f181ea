#include <trireme/engine/claimed_model.h>

#include <trireme/base/error.h>

#include <torch/nn/module.h>

#include <mutex>
#include <set>

namespace trireme::engine {
namespace {

std::mutex& mutex() {
  static auto* const the = new std::mutex(); // never destroyed: an engine may end in a static destructor
  return *the;
}

std::set<const void*>& claimed() {
  static auto* const the = new std::set<const void*>();
  return *the;
}

} // namespace

ClaimedModel::ClaimedModel(const torch::nn::Module& model) {
  const std::lock_guard lock(mutex());
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad() && claimed().count(item.value().unsafeGetTensorImpl()) != 0) {
      throw InputError("engine", concat("parameter \"", item.key(), "\" belongs to another engine"),
                       "Destroy that engine first, or build another model.");
    }
  }
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad() && claimed().insert(item.value().unsafeGetTensorImpl()).second) {
      parameters_.push_back(item.value()); // held, so that no other tensor gets the same address
    }
  }
}

ClaimedModel::~ClaimedModel() {
  const std::lock_guard lock(mutex());
  for (const at::Tensor& parameter : parameters_) {
    claimed().erase(parameter.unsafeGetTensorImpl());
  }
}

} // namespace trireme::engine
