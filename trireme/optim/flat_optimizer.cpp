#include <trireme/optim/flat_optimizer.h>

#include <trireme/base/error.h>
#include <trireme/comm/host_memory.h>

#include <torch/torch.h>

#include <algorithm>

namespace trireme::optim {
namespace {

// Which parameters the range covers, relative to its start.
std::vector<Segment> segments_of(const bucket::FlatLayout& layout, const bucket::Bucket& bucket, const bucket::Range& range) {
  std::vector<Segment> segments;
  for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
    const bucket::Slot& slot = layout.slots()[s];
    const int64_t begin = std::max(slot.begin, range.begin);
    const int64_t end = std::min(slot.end, range.end);
    if (begin < end) {
      segments.push_back({begin - range.begin, end - range.begin, slot.tensor});
    }
  }
  return segments;
}

} // namespace

FlatOptimizer::FlatOptimizer(std::vector<bucket::FlatParameters*> buffers, std::vector<double> weight_decay, const OptimizerOptions& options,
                             int rank, int size, bool sharded)
    : rule_(make_optimizer(options)), rank_(rank), size_(size), sharded_(sharded) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    shards_.push_back({buffers[i], weight_decay.at(i), bucket::ShardPlan(buffers[i]->layout(), rank, size, sharded), {}, {}, {}});
  }
}

void FlatOptimizer::allocate_states() {
  for (Shard& shard : shards_) {
    const bucket::FlatLayout& layout = shard.buffer->layout();
    shard.plan = bucket::ShardPlan(layout, rank_, size_, sharded_);
    for (size_t i = 0; i < rule_->state_names().size(); ++i) {
      shard.states.push_back(comm::allocate_host(shard.plan.state_numel(), torch::kFloat32).zero_());
    }
    for (size_t b = 0; b < layout.buckets().size(); ++b) {
      shard.segments.push_back(segments_of(layout, layout.buckets()[b], shard.plan.mine(static_cast<int64_t>(b))));
    }
  }
}

void FlatOptimizer::begin_step(double lr, std::optional<Betas> betas, double grad_scale) {
  if (!states_allocated()) {
    allocate_states();
  }
  ++steps_;
  lr_ = lr;
  betas_ = betas;
  grad_scale_ = grad_scale;
}

void FlatOptimizer::step_bucket(int64_t buffer, int64_t bucket) {
  Shard& shard = shards_[buffer];
  const bucket::Range range = shard.plan.mine(bucket);
  ShardStep step;
  step.param = shard.buffer->owned_data(bucket, range);
  step.grad = shard.buffer->owned_grad(bucket, range);
  const int64_t offset = shard.plan.state_offset(bucket);
  for (const at::Tensor& state : shard.states) {
    step.states.push_back(state.slice(0, offset, offset + range.numel()));
  }
  step.segments = shard.segments[bucket];
  step.lr = lr_;
  step.betas = betas_;
  step.weight_decay = shard.weight_decay;
  step.grad_scale = grad_scale_;
  step.step = steps_;
  rule_->step(step);
}

void FlatOptimizer::leave_out_of_norm(const std::function<bool(const std::string& name)>& left_out) {
  for (Shard& shard : shards_) {
    for (int64_t i = 0; i < shard.buffer->count(); ++i) {
      if (left_out(shard.buffer->name(i))) {
        shard.uncounted.push_back(i);
      }
    }
  }
}

// In buffer order.
std::vector<bucket::Slot> FlatOptimizer::uncounted_slots(const Shard& shard) {
  std::vector<bucket::Slot> slots;
  for (const int64_t tensor : shard.uncounted) {
    slots.push_back(shard.buffer->layout().slot_of(tensor));
  }
  std::sort(slots.begin(), slots.end(), [](const bucket::Slot& a, const bucket::Slot& b) { return a.begin < b.begin; });
  return slots;
}

double FlatOptimizer::squared_grad_norm() const {
  double sum = 0;
  for (const Shard& shard : shards_) {
    const bucket::ShardPlan plan(shard.buffer->layout(), rank_, size_, true);
    for (size_t b = 0; b < shard.buffer->layout().buckets().size(); ++b) {
      const bucket::Range range = plan.mine(static_cast<int64_t>(b));
      int64_t begin = range.begin;
      for (const bucket::Slot& slot : uncounted_slots(shard)) {
        if (slot.begin < range.end && slot.end > begin) {
          sum += squared_norm(shard.buffer->owned_grad(static_cast<int64_t>(b), {begin, std::max(begin, slot.begin)}));
          begin = std::min(range.end, slot.end);
        }
      }
      sum += squared_norm(shard.buffer->owned_grad(static_cast<int64_t>(b), {begin, range.end}));
    }
  }
  return sum;
}

void FlatOptimizer::for_each_state(const Visit& visit) {
  if (!states_allocated()) {
    allocate_states();
  }
  for (Shard& shard : shards_) {
    const bucket::FlatLayout& layout = shard.buffer->layout();
    for (size_t b = 0; b < layout.buckets().size(); ++b) {
      const bucket::Range range = shard.plan.mine(static_cast<int64_t>(b));
      const int64_t offset = shard.plan.state_offset(static_cast<int64_t>(b));
      for (const Segment& segment : shard.segments[b]) {
        const int64_t begin = range.begin + segment.begin - layout.slot_of(segment.parameter).begin;
        for (size_t i = 0; i < shard.states.size(); ++i) {
          visit(rule_->state_names()[i], layout.tensors()[segment.parameter], begin,
                shard.states[i].slice(0, offset + segment.begin, offset + segment.end));
        }
      }
    }
  }
}

} // namespace trireme::optim
