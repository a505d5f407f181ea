#include <trireme/shards/zero/parameter_coordinator.h>

#include <trireme/base/error.h>
#include <trireme/shards/zero/gather_bucket.h>
#include <trireme/shards/zero/unit.h>

#include <torch/csrc/autograd/function.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <numeric>

namespace trireme::zero {
namespace {

bool contains(const auto& parts, const auto& part) {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

using torch::autograd::Node;

// The source of the node's only input; null with several inputs, or if it needs no gradient.
const Node* source_of(const Node& node) {
  return node.num_outputs() == 1 ? node.next_edge(0).function.get() : nullptr;
}

} // namespace

// An embedding's backward reads indices only, unless its weight is computed from parameters. Tensor ranks set the rows
// of other ranks to zero and add up.
bool ParameterCoordinator::reads_parameters_in_backward(const at::Tensor& output) const {
  const Node* node = output.grad_fn().get();
  while (node != nullptr && (node->name() == "MaskedFillBackward0" || is_exchange_(*node))) {
    node = source_of(*node);
  }
  if (node == nullptr || node->name() != "EmbeddingBackward0") {
    return true;
  }
  const Node* weight = source_of(*node);
  while (weight != nullptr && weight->name() == "AliasBackward0") {
    weight = source_of(*weight);
  }
  return weight == nullptr || weight->num_outputs() > 0; // a leaf has no node behind it
}

ParameterCoordinator::ParameterCoordinator(std::vector<bucket::FlatParameters*> buffers, parallel::ReduceGroups groups,
                                           std::optional<int64_t> ahead, IsExchange is_exchange)
    : buffers_(std::move(buffers)), groups_(std::move(groups)), is_exchange_(std::move(is_exchange)) {
  for (bucket::FlatParameters* const buffer : buffers_) {
    for (int64_t b = 0; b < std::ssize(buffer->layout().buckets()); ++b) {
      buckets_.push_back({buffer, b});
    }
  }
  rule_.sizes.resize(buckets_.size(), 0);
  rule_.ahead = ahead;
}

ParameterCoordinator::Parts ParameterCoordinator::parts_of(const std::vector<at::Tensor>& parameters) const {
  Parts parts;
  int64_t first = 0; // of the buffer's
  for (bucket::FlatParameters* const buffer : buffers_) {
    for (int64_t i = 0; i < buffer->count(); ++i) {
      const bool meant = std::any_of(parameters.begin(), parameters.end(),
                                     [&](const at::Tensor& p) { return p.is_same(buffer->parameter(i)); });
      const int64_t part = first + buffer->layout().bucket_of(i);
      if (meant && !contains(parts, part)) {
        parts.push_back(part);
      }
    }
    first += std::ssize(buffer->layout().buckets());
  }
  return parts;
}

void ParameterCoordinator::add(const torch::nn::Module& module, const SizeOf& size, const torch::nn::Module* within) {
  Parts parts = parts_of(own_parameters(module));
  std::erase_if(parts, [&](int64_t part) { return buckets_[part].is_replicated(); });
  if (parts.empty()) {
    return;
  }
  for (const int64_t part : parts) {
    bucket::FlatParameters& buffer = *buckets_[part].buffer;
    const bucket::Bucket& bucket = buffer.layout().buckets()[buckets_[part].bucket];
    int64_t& elements = rule_.sizes[part] = 0;
    for (int64_t slot = bucket.first_slot; slot < bucket.last_slot; ++slot) {
      elements += size(buffer.parameter(buffer.layout().slots()[slot].tensor));
    }
  }
  if (const auto outer = units_.find(within); outer != units_.end()) {
    std::copy_if(outer->second.begin(), outer->second.end(), std::back_inserter(parts),
                 [&](int64_t part) { return !contains(parts, part); });
  }
  units_.emplace(&module, std::move(parts));
}

int64_t ParameterCoordinator::unit_elements() const {
  return std::accumulate(rule_.sizes.begin(), rule_.sizes.end(), int64_t{0});
}

PartSet ParameterCoordinator::whole_parts(const Parts& needed) const {
  PartSet live(buckets_.size());
  for (const auto& item : live_) {
    live.insert(item.first);
  }
  return rule_.whole_parts(needed, live, [&](const auto& look) {
    order_.for_each_upcoming(
        [&](const void* unit) { return look(units_.at(static_cast<const torch::nn::Module*>(unit))); });
  });
}

void ParameterCoordinator::enter(const torch::nn::Module& module) {
  const auto unit = units_.find(&module);
  if (&module == current_ || unit == units_.end()) {
    return;
  }
  current_ = &module;
  order_.note(&module);
  const Parts& needed = unit->second;
  const PartSet whole = whole_parts(needed);
  release_except(whole);
  prefetch(whole.parts());
  std::for_each(whole.parts().begin(), whole.parts().end(), [&](int64_t part) { start(part); });
  std::for_each(needed.begin(), needed.end(), [&](int64_t part) { finish(part); });
}

// Asks the store to read the shards of what is gathered now and, as far as known, of what follows.
void ParameterCoordinator::prefetch(const Parts& gathered) const {
  Parts asked;
  const auto ask = [&](int64_t part) {
    if (live_.count(part) == 0 && !contains(asked, part) && std::ssize(asked) < read_ahead_) {
      buckets_[part].buffer->prefetch_data(buckets_[part].bucket);
      asked.push_back(part);
    }
  };
  std::for_each(gathered.begin(), gathered.end(), ask);
  const auto ask_of = [&](const void* unit) {
    const Parts& parts = units_.at(static_cast<const torch::nn::Module*>(unit));
    std::for_each(parts.begin(), parts.end(), ask);
    return std::ssize(asked) < read_ahead_;
  };
  bool open = std::ssize(asked) < read_ahead_;
  if (open) {
    order_.for_each_upcoming([&](const void* unit) { return open = ask_of(unit); });
  }
  if (open) { // one unit only: a step in between needs the store's memory
    order_.for_each_of_next_pass([&](const void* unit) {
      ask_of(unit);
      return false;
    });
  }
}

void ParameterCoordinator::gather_for_backward(const torch::nn::Module& module, const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad() || output.is_leaf() || !reads_parameters_in_backward(output)) {
    return;
  }
  output.register_hook([weak = weak_from_this(), unit = &module](const at::Tensor&) {
    if (const auto self = weak.lock()) {
      self->enter(*unit);
    }
  });
}

void ParameterCoordinator::start(int64_t part) {
  if (live_.count(part) != 0) {
    return;
  }
  const auto& [buffer, bucket] = buckets_[part];
  live_[part].work = gather_bucket(groups_.shards_of(*buffer), *buffer, bucket);
}

void ParameterCoordinator::finish(int64_t part) {
  Live& live = live_.at(part);
  if (!live.arrived) {
    const auto begin = std::chrono::steady_clock::now();
    live.work.wait();
    live.arrived = true;
    exposed_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
}

void ParameterCoordinator::release_except(const PartSet& kept) {
  for (auto live = live_.begin(); live != live_.end();) {
    const int64_t part = live->first;
    if (kept.has(part) || pins_.count(part) != 0) {
      ++live;
      continue;
    }
    finish(part);
    buckets_[part].buffer->release(buckets_[part].bucket);
    live = live_.erase(live);
  }
}

void ParameterCoordinator::release_all() {
  current_ = nullptr;
  release_except(PartSet(buckets_.size()));
}

void ParameterCoordinator::pin(const std::vector<at::Tensor>& parameters, bool to_modify) {
  for (const int64_t part : parts_of(parameters)) {
    if (const bucket::FlatParameters& buffer = *buckets_[part].buffer; to_modify && buffer.reduce_group() != 0) {
      throw InputError("engine",
                       concat("gather_parameters() with modifier_rank: parameter \"", buffer.name(0),
                              "\" or its bucket is not on every rank"),
                       "Change them on each rank that has them, without modifier_rank.");
    }
  }
  for (const int64_t part : parts_of(parameters)) {
    if (!buckets_[part].is_replicated()) {
      ++pins_[part];
      start(part);
      finish(part);
      buckets_[part].buffer->detach_owned_data(buckets_[part].bucket);
    }
  }
}

void ParameterCoordinator::rewrite(const std::vector<at::Tensor>& parameters, const std::function<void()>& f) {
  pin(parameters);
  f();
  for (const int64_t part : parts_of(parameters)) {
    buckets_[part].buffer->update_shard(buckets_[part].bucket);
  }
  unpin(parameters, std::nullopt);
}

void ParameterCoordinator::forget_buffers() {
  buffers_.clear();
  buckets_.clear();
  units_.clear();
  current_ = nullptr;
  pins_.clear();
  live_.clear();
}

void ParameterCoordinator::unpin(const std::vector<at::Tensor>& parameters, std::optional<int> modifier) {
  if (buffers_.empty()) {
    return;
  }
  const torch::NoGradGuard no_grad;
  for (const int64_t part : parts_of(parameters)) {
    auto& [buffer, bucket] = buckets_[part];
    if (modifier) {
      groups_.data().broadcast(buffer->bucket_data(bucket), *modifier, "modified parameters").wait();
      buffer->update_shard(bucket);
    }
    if (!buffer->is_replicated(bucket) && --pins_[part] == 0) {
      pins_.erase(part);
      if (current_ == nullptr || !contains(units_.at(current_), part)) {
        buffer->release(bucket);
        live_.erase(part);
      }
    }
  }
  for (const at::Tensor& parameter : parameters) {
    if (modifier && parts_of({parameter}).empty()) { // frozen: in no buffer
      at::Tensor values = parameter.detach().contiguous();
      groups_.data().broadcast(values, *modifier, "modified parameters").wait();
      parameter.detach().copy_(values);
    }
  }
  if (modifier && on_modified_) {
    on_modified_();
  }
}

} // namespace trireme::zero
