#include <trireme/shards/zero/model_units.h>

#include <trireme/shards/zero/persistence.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <set>

namespace trireme::zero {

ModelUnits ModelUnits::of(torch::nn::Module& model) {
  ModelUnits units;
  for (Unit* const unit : units_of(model)) {
    units.add(unit->module(), nullptr, unit);
  }
  return units;
}

void ModelUnits::add(torch::nn::Module& module, std::unique_ptr<EarlyShards> early, Unit* unit) {
  const size_t number = items_.size();
  add_one(module, std::move(early), unit, std::nullopt);
  for (Unit* const tile : tiles_of(module)) {
    add_one(tile->module(), nullptr, tile, number);
  }
}

// Tiles come after their unit, because their gradients are final before all of the unit's own are.
void ModelUnits::add_one(torch::nn::Module& module, std::unique_ptr<EarlyShards> early, Unit* unit,
                         std::optional<size_t> within) {
  Item item{&module, std::move(early), unit, {}, within};
  for (const at::Tensor& parameter : own_parameters(module)) {
    if (unit_of_.emplace(parameter.unsafeGetTensorImpl(), static_cast<int64_t>(items_.size())).second) {
      item.parameters.push_back(parameter);
    }
  }
  items_.push_back(std::move(item));
}

void ModelUnits::choose(const ZeroOptions& options, const comm::Group& tensor) {
  std::vector<at::Tensor> all;
  std::vector<int64_t> sizes;
  for (const Item& item : items_) {
    for (const at::Tensor& parameter : item.parameters) {
      all.push_back(parameter);
      sizes.push_back(parameter.numel());
    }
  }
  at::Tensor largest = torch::tensor(sizes, torch::kInt64);
  if (!sizes.empty()) {
    tensor.all_reduce(largest, comm::ReduceOp::max, "sizes of parameters").wait();
  }
  for (size_t i = 0; i < all.size(); ++i) {
    sizes[i] = largest[static_cast<int64_t>(i)].item<int64_t>();
    sizes_[all[i].unsafeGetTensorImpl()] = sizes[i];
  }
  const std::vector<bool> persistent = are_persistent(sizes, options);
  for (size_t i = 0; i < all.size(); ++i) {
    if (persistent[i]) {
      unit_of_.erase(all[i].unsafeGetTensorImpl());
    }
  }
}

int64_t ModelUnits::unit_of(const at::Tensor& parameter) const {
  const auto found = unit_of_.find(parameter.unsafeGetTensorImpl());
  return found == unit_of_.end() ? bucket::TensorInfo::kNoUnit : found->second;
}

int64_t ModelUnits::sharded_elements() const {
  int64_t sum = 0;
  for (const Item& item : items_) {
    for (const at::Tensor& parameter : item.parameters) {
      sum += unit_of(parameter) == bucket::TensorInfo::kNoUnit ? 0 : parameter.numel();
    }
  }
  return sum;
}

void ModelUnits::make_whole(Item& item) {
  for (Item* one : {&item, item.within ? &items_[*item.within] : nullptr}) { // a layer was sharded with its tiles
    if (one != nullptr && one->early) {
      one->early->gather();
    }
  }
  for (const auto& module : item.module->modules()) {
    auto* const unit = dynamic_cast<Unit*>(module.get());
    if (unit != nullptr && (unit == item.unit || !unit->is_tile())) {
      unit->make_whole();
    }
  }
}

// Units inside others need nothing more, except for tiles.
void ModelUnits::join(Item& item, const std::shared_ptr<ParameterCoordinator>& coordinator) {
  item.early.reset();
  for (const auto& module : item.module->modules()) {
    auto* const unit = dynamic_cast<Unit*>(module.get());
    if (unit != nullptr && (unit == item.unit || !unit->is_tile())) {
      unit->join(unit == item.unit ? coordinator : nullptr);
    }
  }
}

void ModelUnits::make_whole() {
  for (Item& item : items_) {
    make_whole(item);
  }
}

void ModelUnits::drop_early_shards() {
  for (Item& item : items_) {
    join(item, nullptr);
  }
}

void ModelUnits::move_into(const std::vector<bucket::FlatParameters*>& buffers, const Agree& agree,
                           const std::shared_ptr<ParameterCoordinator>& coordinator) {
  const torch::NoGradGuard no_grad;
  const auto move_in = [&](bucket::FlatParameters& buffer, int64_t b) {
    buffer.move_in(b);
    if (agree) {
      agree(buffer, b);
    }
    buffer.update_shard(b);
    buffer.release(b);
  };
  const auto move_in_unit = [&](int64_t unit) {
    for (bucket::FlatParameters* const buffer : buffers) {
      for (size_t b = 0; b < buffer->layout().buckets().size(); ++b) {
        if (buffer->layout().buckets()[b].unit == unit) {
          move_in(*buffer, static_cast<int64_t>(b));
        }
      }
    }
  };
  const auto move_item = [&](size_t i) {
    Item& item = items_[i];
    make_whole(item);
    for (const at::Tensor& parameter : item.parameters) {
      if (unit_of(parameter) == bucket::TensorInfo::kNoUnit) {
        at::Tensor(parameter).set_data(parameter.detach().clone()); // its memory is freed with the unit's
      }
    }
    move_in_unit(static_cast<int64_t>(i));
    join(item, coordinator);
  };
  for (size_t i = 0; i < items_.size(); ++i) { // tiles first: they may lie in the unit's early shards
    for (size_t tile = i + 1; tile < items_.size() && items_[tile].within == i; ++tile) {
      move_item(tile);
    }
    if (!items_[i].within) {
      move_item(i);
    }
  }
  move_in_unit(bucket::TensorInfo::kNoUnit);
  for (const Item& item : items_) {
    coordinator->add(
        *item.module, [this](const at::Tensor& parameter) { return sizes_.at(parameter.unsafeGetTensorImpl()); },
        item.within ? items_[*item.within].module : nullptr);
  }
}

} // namespace trireme::zero
