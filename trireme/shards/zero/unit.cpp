#include <trireme/shards/zero/unit.h>

#include <trireme/device/move.h>
#include <trireme/precision/cast.h>
#include <trireme/shards/bucket/shared_memory.h>
#include <trireme/shards/zero/early_shards.h>
#include <trireme/shards/zero/init.h>
#include <trireme/shards/zero/parameter_coordinator.h>

#include <c10/util/Type.h>
#include <torch/nn/module.h>

namespace trireme::zero {
namespace {

const Unit* as_tile(const torch::nn::Module& module) {
  const auto* const unit = dynamic_cast<const Unit*>(&module);
  return unit != nullptr && unit->is_tile() ? unit : nullptr;
}

void collect(torch::nn::Module& module, std::vector<Unit*>& units) {
  if (auto* const unit = dynamic_cast<Unit*>(&module)) {
    units.push_back(unit);
    return;
  }
  for (const auto& child : module.children()) {
    collect(*child, units);
  }
}

} // namespace

Unit::Unit() = default;
Unit::~Unit() = default;

void Unit::join(const std::shared_ptr<ParameterCoordinator>& coordinator) {
  coordinator_ = coordinator;
  early_.reset();
}

bool Unit::make_whole() {
  if (early_) {
    early_->gather();
  }
  return early_ != nullptr;
}

void Unit::built(torch::nn::Module& module) {
  if (Init::active() != nullptr) {
    bucket::refuse_shared_memory(bucket::tensors_of(module));
    device::move(module, Init::active()->device());
    if (Init::active()->type() != precision::Type::fp32) {
      precision::cast_module(module, Init::active()->type());
    }
    early_ = std::make_unique<EarlyShards>(module, Init::active()->group(), Init::active()->store());
  }
}

activations::ModelPart Unit::part(torch::nn::Module& module, const std::type_info& type) {
  if (type_.empty()) {
    type_ = c10::demangle(type.name());
    type_ = type_.substr(type_.rfind(':') + 1); // npos + 1 is 0
  }
  return {.key = &module, .type = type_, .recompute = {.buffers = module.buffers()}};
}

void Unit::enter(torch::nn::Module& module) {
  if (const auto coordinator = coordinator_.lock()) {
    coordinator->enter(module);
  } else {
    make_whole();
  }
}

void Unit::leave(torch::nn::Module& module, const at::Tensor& output) {
  if (const auto coordinator = coordinator_.lock()) {
    coordinator->gather_for_backward(module, output);
  }
}

void Unit::leave(torch::nn::Module& module, const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& output : outputs) {
    leave(module, output);
  }
}

std::vector<Unit*> units_of(torch::nn::Module& model) {
  std::vector<Unit*> units;
  collect(model, units);
  return units;
}

std::vector<Unit*> tiles_of(torch::nn::Module& unit) {
  std::vector<Unit*> tiles;
  for (const auto& child : unit.children()) {
    if (as_tile(*child) != nullptr) {
      tiles.push_back(dynamic_cast<Unit*>(child.get()));
    } else {
      const std::vector<Unit*> within = tiles_of(*child);
      tiles.insert(tiles.end(), within.begin(), within.end());
    }
  }
  return tiles;
}

std::vector<at::Tensor> own_parameters(const torch::nn::Module& unit) {
  std::vector<at::Tensor> found = unit.parameters(/*recurse=*/false);
  for (const auto& child : unit.children()) {
    if (as_tile(*child) == nullptr) {
      const std::vector<at::Tensor> within = own_parameters(*child);
      found.insert(found.end(), within.begin(), within.end());
    }
  }
  return found;
}

} // namespace trireme::zero
