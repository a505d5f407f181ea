// Decides which rank saves which part of the training, and from where.
#include <trireme/checkpoint/placed.h>
#include <trireme/engine/lenders.h>
#include <trireme/engine/random_state.h>
#include <trireme/engine/saved_names.h>
#include <trireme/engine/training_state.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <map>
#include <set>

namespace trireme::engine {

TrainingState::Balance::Balance(const comm::Group& group) : rank_(group.rank()), bytes_(group.size(), 0) {}

bool TrainingState::Balance::is_mine(int64_t bytes) {
  const auto least = std::min_element(bytes_.begin(), bytes_.end());
  *least += bytes;
  return least - bytes_.begin() == rank_;
}

// The ranks that have the same tensors share the saving of them.
std::vector<TrainingState::Balance> TrainingState::balances() const {
  std::vector<Balance> all;
  for (const comm::Group& group : engine_.parts.agreement.sync->groups().all()) {
    all.emplace_back(group);
  }
  return all;
}

bool TrainingState::has_first_copy(const bucket::TensorInfo& tensor) const {
  return engine_.parts.agreement.sync->groups().replicas(tensor.placement.reduce_group).rank() == 0;
}

std::vector<checkpoint::TensorShard> TrainingState::model_shards(std::vector<Balance>& balances) {
  std::vector<checkpoint::TensorShard> mine;
  std::set<const void*> seen; // a tied weight is saved once, under its first name
  const auto is_new = [&](const std::string& name, const at::Tensor& tensor) {
    return saved_name(name) == name && seen.insert(tensor.unsafeGetTensorImpl()).second;
  };
  const auto append = [&](std::vector<checkpoint::TensorShard> shards) {
    std::move(shards.begin(), shards.end(), std::back_inserter(mine));
  };
  const auto add = [&](const bucket::TensorInfo& tensor, const std::string& name, const char* kind, int64_t begin,
                       const at::Tensor& values) { append(checkpoint::shards_of(tensor, name, kind, begin, values)); };
  for_each_buffer([&](bucket::FlatParameters& buffer) {
    for (int64_t b = 0; b < std::ssize(buffer.layout().buckets()); ++b) {
      const std::vector<bucket::TensorRange> pieces = buffer.sharded_pieces(b);
      const auto lender = std::make_shared<ShardLender>(buffer, b);
      for (size_t i = 0; i < pieces.size(); ++i) {
        const bucket::TensorInfo& tensor = buffer.layout().tensors()[pieces[i].i];
        if (is_saved_here(tensor) && saved_name(tensor.name) == tensor.name && has_first_copy(tensor)) {
          append(checkpoint::lent_shards_of(tensor, whole_name(tensor), "parameter", pieces[i].begin, pieces[i].numel,
                                            buffer.scalar_type(), lender, static_cast<int64_t>(i)));
        }
      }
    }
  });
  const auto sharded_ones = sharded();
  for (const auto& item : engine_.parts.model.module->named_parameters()) {
    const bucket::TensorInfo info = info_of(item.value());
    if (sharded_ones.count(item.value().unsafeGetTensorImpl()) == 0 && is_new(item.key(), item.value()) &&
        is_saved_here(info) &&
        balances[info.placement.reduce_group].is_mine(static_cast<int64_t>(item.value().nbytes()))) {
      add(info, whole_name(item.key(), info), "parameter", 0, item.value().detach());
    }
  }
  // Buffers may differ among replicas; the first one's are saved.
  for (const auto& item : engine_.parts.model.module->named_buffers()) {
    const bucket::TensorInfo info = info_of(item.value());
    if (is_new(item.key(), item.value()) && engine_.parts.ranks.group.rank() == 0 && is_saved_here(info)) {
      add(info, item.key(), "buffer", 0, item.value().detach());
    }
  }
  return mine;
}

std::vector<checkpoint::TensorShard> TrainingState::shards() {
  std::vector<Balance> balances = this->balances();
  std::vector<checkpoint::TensorShard> mine = model_shards(balances);
  const auto append = [&](std::vector<checkpoint::TensorShard> shards) {
    std::move(shards.begin(), shards.end(), std::back_inserter(mine));
  };
  // If replicas hold the same states, one of them writes each tensor's.
  std::map<std::string, bool> is_mine;
  for (const optim::FlatOptimizer::StateBucket& bucket : engine_.parts.stepper.optimizer->state_buckets()) {
    const auto lender = std::make_shared<StateLender>(*engine_.parts.stepper.optimizer, bucket.buffer, bucket.bucket);
    for (size_t i = 0; i < bucket.pieces.size(); ++i) {
      const optim::FlatOptimizer::StateRange& piece = bucket.pieces[i];
      const bucket::TensorInfo& tensor = *piece.tensor;
      if (saved_name(tensor.name) != tensor.name || !is_saved_here(tensor)) {
        continue;
      }
      const std::string name = concat(piece.state, '/', whole_name(tensor));
      const auto lend = [&](const std::string& as) {
        append(checkpoint::lent_shards_of(tensor, as, "optimizer", piece.begin, piece.numel, piece.type, lender,
                                          static_cast<int64_t>(i)));
      };
      if (is_of_each_replica(piece.state)) {
        lend(of_replica(engine_.parts.ranks.group.rank(), name));
        continue;
      }
      const int64_t bytes = piece.numel * static_cast<int64_t>(c10::elementSize(piece.type));
      if (engine_.parts.stepper.optimizer->sharded()
              ? has_first_copy(tensor)
              : is_mine
                    .try_emplace(concat(piece.state, '/', tensor.name),
                                 balances[tensor.placement.reduce_group].is_mine(bytes))
                    .first->second) {
        lend(name);
      }
    }
  }
  parallel::SyncState& of_sync = engine_.parts.agreement.sync->sync_state();
  of_sync.for_each_state(of_sync.state(), [&](const std::string& state, const bucket::TensorInfo& tensor, int64_t begin,
                                              const at::Tensor& values) {
    if (saved_name(tensor.name) == tensor.name && is_saved_here(tensor)) {
      append(checkpoint::shards_of(tensor, concat(state, '/', whole_name(tensor)), "gradient_sync", begin, values));
    }
  });
  append(random_states(engine_.parts));
  return mine;
}

} // namespace trireme::engine
