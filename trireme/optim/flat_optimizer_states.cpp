// The states of a FlatOptimizer as a checkpoint reads and writes them, one bucket at a time.
#include <trireme/optim/flat_optimizer.h>

#include <torch/utils.h>

namespace trireme::optim {

// Masters first, then one state after another, each in the order of the buffer.
std::vector<FlatOptimizer::StateBucket> FlatOptimizer::state_buckets() const {
  const at::ScalarType type = rule_->state_type() == StateType::int8 ? at::kFloat : scalar_type(rule_->state_type());
  std::vector<StateBucket> buckets;
  for (int64_t buffer = 0; buffer < std::ssize(shards_); ++buffer) {
    const Shard& shard = shards_[buffer];
    const bucket::FlatLayout& layout = shard.buffer->layout();
    for (int64_t number = 0; number < std::ssize(shard.chunks) && shard.in_store; ++number) {
      const Chunk& chunk = shard.chunks[number];
      StateBucket found{buffer, number, {}};
      const auto add = [&](const std::string& state, at::ScalarType visited) {
        for (const Segment& segment : chunk.segments) {
          const int64_t begin = chunk.range.begin + segment.begin - layout.slot_of(segment.parameter).begin;
          found.pieces.push_back(
              {state, &layout.tensors()[segment.parameter], begin, segment.end - segment.begin, visited});
        }
      };
      if (shard.low_precision) {
        add(kMasterState, at::kFloat);
      }
      for (const StateInfo& info : rule_->states()) {
        add(info.name, type);
      }
      if (!found.pieces.empty()) {
        buckets.push_back(std::move(found));
      }
    }
  }
  return buckets;
}

void FlatOptimizer::visit_states(int64_t buffer, int64_t bucket,
                                 const std::function<void(size_t, const at::Tensor&)>& visit, bool modifies) {
  const Shard& shard = shards_[buffer];
  const Chunk& chunk = shard.chunks[bucket];
  const std::vector<Segment>& segments = chunk.segments;
  const auto& infos = rule_->states();
  if (steps_ == 0) {
    refresh_master(shard, chunk);
  }
  with_states(shard, chunk, modifies, [&](const BucketStates& states) {
    size_t number = 0;
    for (size_t s = 0; s < segments.size() && shard.low_precision; ++s) {
      visit(number++, states.master.slice(0, segments[s].begin, segments[s].end));
    }
    for (size_t i = 0; i < infos.size(); ++i) {
      for (size_t s = 0; s < segments.size(); ++s) {
        const at::Tensor state = states.states[i].slice(0, segments[s].begin, segments[s].end);
        if (states.scales.empty()) {
          visit(number++, state);
          continue;
        }
        const at::Tensor scales = scales_of(chunk, states, i, s);
        const at::Tensor values = decode_states(state, scales, infos[i].is_signed);
        visit(number++, values);
        if (modifies) {
          encode_states(values, state, scales, infos[i].is_signed);
        }
      }
    }
  });
}

void FlatOptimizer::for_each_state(const Visit& visit, bool modifies) {
  const std::vector<StateBucket> buckets = state_buckets();
  for (size_t b = 0; b < buckets.size(); ++b) {
    const StateBucket& one = buckets[b];
    visit_states(
        one.buffer, one.bucket,
        [&](size_t number, const at::Tensor& values) {
          if (number == 0 && b + 1 < buckets.size()) {
            prefetch_states(buckets[b + 1].buffer, buckets[b + 1].bucket);
          }
          visit(one.pieces[number].state, *one.pieces[number].tensor, one.pieces[number].begin, values);
        },
        modifies);
  }
}

void FlatOptimizer::prefetch_states(int64_t buffer, int64_t bucket) {
  store_->prefetch(*shards_[buffer].in_store, bucket);
}

// Before the first step masters may be older than the parameters; 8-bit states are visited decoded.
std::optional<bucket::Extent> FlatOptimizer::state_extent(int64_t buffer, int64_t bucket, size_t number) {
  const Shard& shard = shards_[buffer];
  const std::vector<Segment>& segments = shard.chunks[bucket].segments;
  const size_t unvisited = has_masters(shard) && !shard.low_precision ? 1 : 0; // copies of fp32 parameters on the host
  const size_t array = number / segments.size() + unvisited;                   // as keep() numbers them
  const bool is_master = shard.low_precision && array == 0;
  if ((shard.low_precision && steps_ == 0) || (!is_master && rule_->state_type() == StateType::int8)) {
    return std::nullopt;
  }
  std::optional<bucket::Extent> extent = store_->extent(*shard.in_store, bucket, static_cast<int64_t>(array));
  if (extent) {
    const auto bytes =
        static_cast<int64_t>(c10::elementSize(is_master ? at::kFloat : scalar_type(rule_->state_type())));
    const Segment& segment = segments[number % segments.size()];
    extent->offset += segment.begin * bytes;
    extent->bytes = (segment.end - segment.begin) * bytes;
  }
  return extent;
}

} // namespace trireme::optim
