#include <trireme/optim/flat_optimizer.h>

#include <trireme/base/error.h>
#include <trireme/comm/host_memory.h>
#include <trireme/kernels/optimizer_args.h>

#include <torch/utils.h>

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

int64_t blocks_of(const Segment& segment) {
  return (segment.end - segment.begin + kStateBlock - 1) / kStateBlock;
}

} // namespace

FlatOptimizer::FlatOptimizer(std::vector<bucket::FlatParameters*> buffers, const WeightDecay& weight_decay, const OptimizerOptions& options, int rank,
                             int size, bool sharded)
    : rule_(make_optimizer(options)), rank_(rank), size_(size), sharded_(sharded) {
  int64_t tensors = 0;
  for (bucket::FlatParameters* buffer : buffers) {
    std::vector<double> decay;
    for (const bucket::TensorInfo& tensor : buffer->layout().tensors()) {
      decay.push_back(weight_decay(tensor));
    }
    Shard& shard = shards_.emplace_back(
        Shard{buffer, std::move(decay), bucket::ShardPlan(buffer->layout(), rank, size, sharded), {}, {}, {}, {}, {}, {}, {}, 2 * tensors});
    tensors += shard.buffer->count();
    allocate(shard);
  }
  norms_.resize(rule_->needs_norms() ? 2 * tensors : 0);
}

void FlatOptimizer::allocate(Shard& shard) const {
  const bucket::FlatLayout& layout = shard.buffer->layout();
  int64_t blocks = 0;
  for (size_t b = 0; b < layout.buckets().size(); ++b) {
    shard.segments.push_back(segments_of(layout, layout.buckets()[b], shard.plan.mine(static_cast<int64_t>(b))));
    std::vector<int64_t>& offsets = shard.scale_offset.emplace_back();
    for (const Segment& segment : shard.segments.back()) {
      offsets.push_back(blocks);
      blocks += blocks_of(segment);
    }
  }
  for (const StateInfo& info : rule_->states()) {
    at::Tensor state = comm::allocate_host(shard.plan.state_numel(), scalar_type(rule_->state_type()));
    if (rule_->state_type() == StateType::int8) {
      shard.scales.push_back(torch::full({blocks}, info.initial, torch::kFloat32));
      state.fill_(info.initial == 0 ? 0 : info.is_signed ? kernels::kLargestSignedCode : kernels::kLargestCode);
    } else {
      state.fill_(info.initial);
    }
    shard.states.push_back(state);
  }
  if (shard.buffer->scalar_type() != torch::kFloat32) {
    shard.master = comm::allocate_host(shard.plan.state_numel(), torch::kFloat32).zero_();
  }
}

void FlatOptimizer::follow_first_values() {
  if (steps_ == 0) {
    refresh_masters();
  }
}

void FlatOptimizer::refresh_masters() {
  const torch::NoGradGuard no_grad;
  for (Shard& shard : shards_) {
    for (size_t b = 0; shard.master.defined() && b < shard.segments.size(); ++b) {
      const auto bucket = static_cast<int64_t>(b);
      const bucket::Range range = shard.plan.mine(bucket);
      const int64_t offset = shard.plan.state_offset(bucket);
      const at::Tensor master = shard.master.slice(0, offset, offset + range.numel());
      const at::Tensor data = shard.buffer->owned_data(bucket, range);
      master.copy_(torch::where(master.to(data.scalar_type()) == data, master, data.to(torch::kFloat32)));
    }
  }
}

int64_t FlatOptimizer::bytes() const {
  size_t sum = 0;
  for (const Shard& shard : shards_) {
    sum += shard.master.defined() ? shard.master.nbytes() : 0;
    for (const auto* arrays : {&shard.states, &shard.scales}) {
      for (const at::Tensor& array : *arrays) {
        sum += array.nbytes();
      }
    }
  }
  return static_cast<int64_t>(sum);
}

void FlatOptimizer::begin_step(double lr, std::optional<Betas> betas, double grad_scale) {
  follow_first_values();
  ++steps_;
  lr_ = lr;
  betas_ = betas;
  grad_scale_ = grad_scale;
  prepared_ = false;
  for (Shard& shard : shards_) {
    shard.unused.clear();
  }
}

void FlatOptimizer::leave_out(int64_t buffer, std::vector<bool> unused) {
  shards_[buffer].unused = std::move(unused);
}

at::Tensor FlatOptimizer::scales_of(const Shard& shard, size_t state, int64_t bucket, size_t segment) const {
  const int64_t begin = shard.scale_offset[bucket][segment];
  return shard.scales[state].slice(0, begin, begin + blocks_of(shard.segments[bucket][segment]));
}

// Of segments [first, last) and the gaps between them, which are zero and stay zero.
ShardStep FlatOptimizer::shard_step(const Shard& shard, int64_t bucket, size_t first, size_t last) const {
  const std::vector<Segment>& segments = shard.segments[bucket];
  const int64_t start = shard.plan.mine(bucket).begin;
  const bucket::Range range{start + segments[first].begin, start + segments[last - 1].end};
  const int64_t begin = shard.plan.state_offset(bucket) + segments[first].begin;
  const int64_t end = begin + range.numel();
  const at::Tensor data = shard.buffer->owned_data(bucket, range);
  ShardStep step;
  if (shard.master.defined()) {
    step.param = shard.master.slice(0, begin, end);
    step.param_copy = data;
  } else {
    step.param = data;
  }
  step.grad = shard.buffer->owned_grad(bucket, range);
  for (const at::Tensor& state : shard.states) {
    step.states.push_back(state.slice(0, begin, end));
  }
  for (size_t i = 0; i < shard.scales.size(); ++i) {
    step.scales.push_back(scales_of(shard, i, bucket, first));
  }
  step.lr = lr_;
  step.betas = betas_;
  step.weight_decay = shard.weight_decay[segments[first].parameter];
  step.grad_scale = grad_scale_;
  step.step = steps_;
  return step;
}

// Neighbours are stepped together where they decay alike and none between them is left out. With 8-bit states each goes by itself, because
// it has blocks of its own.
void FlatOptimizer::for_each_step(Shard& shard, int64_t bucket, const std::function<void(ShardStep&)>& f) const {
  const std::vector<Segment>& segments = shard.segments[bucket];
  const auto left_out = [&](size_t s) { return !shard.unused.empty() && shard.unused[segments[s].parameter]; };
  const auto decay = [&](size_t s) { return shard.weight_decay[segments[s].parameter]; };
  for (size_t first = 0, last = 0; first < segments.size(); first = last) {
    last = first + 1;
    if (left_out(first)) {
      continue;
    }
    while (shard.scales.empty() && last < segments.size() && !left_out(last) && decay(last) == decay(first)) {
      ++last;
    }
    ShardStep step = shard_step(shard, bucket, first, last);
    std::vector<Segment> own(segments.begin() + static_cast<int64_t>(first), segments.begin() + static_cast<int64_t>(last));
    for (Segment& segment : own) {
      segment.begin -= segments[first].begin;
      segment.end -= segments[first].begin;
    }
    step.segments = own;
    f(step);
  }
}

std::span<double> FlatOptimizer::norms_of(const Shard& shard) {
  return std::span<double>(norms_).subspan(shard.first_norm, 2 * shard.buffer->count());
}

void FlatOptimizer::prepare() {
  if (!needs_norms()) {
    return;
  }
  std::fill(norms_.begin(), norms_.end(), 0.0);
  for (Shard& shard : shards_) {
    for (size_t b = 0; b < shard.segments.size(); ++b) {
      for_each_step(shard, static_cast<int64_t>(b), [&](ShardStep& step) { rule_->prepare(step, norms_of(shard)); });
    }
  }
  if (sharded_ && size_ > 1) {
    if (!sum_over_) {
      throw Error("optim", concat(rule_->name(), ": norms of parameters that lie on several ranks need sum_over()."));
    }
    at::Tensor sums = torch::from_blob(norms_.data(), {static_cast<int64_t>(norms_.size())}, torch::kFloat64);
    sum_over_(sums);
  }
  prepared_ = true;
}

void FlatOptimizer::step_bucket(int64_t buffer, int64_t bucket) {
  if (needs_norms() && !prepared_) {
    throw Error("optim", concat(rule_->name(), ": step_bucket() before prepare()."));
  }
  Shard& shard = shards_[buffer];
  for_each_step(shard, bucket, [&](ShardStep& step) {
    if (needs_norms()) {
      step.norms = norms_of(shard);
    }
    rule_->step(step);
  });
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
  follow_first_values();
  const auto& infos = rule_->states();
  for (Shard& shard : shards_) {
    const bucket::FlatLayout& layout = shard.buffer->layout();
    for (size_t b = 0; b < layout.buckets().size(); ++b) {
      const auto bucket = static_cast<int64_t>(b);
      const bucket::Range range = shard.plan.mine(bucket);
      const int64_t offset = shard.plan.state_offset(bucket);
      const auto visit_segment = [&](const std::string& name, const Segment& segment, const at::Tensor& values) {
        visit(name, layout.tensors()[segment.parameter], range.begin + segment.begin - layout.slot_of(segment.parameter).begin, values);
      };
      const auto piece = [&](const at::Tensor& array, const Segment& segment) {
        return array.slice(0, offset + segment.begin, offset + segment.end);
      };
      for (const Segment& segment : shard.segments[b]) {
        if (shard.master.defined()) {
          visit_segment(kMasterState, segment, piece(shard.master, segment));
        }
      }
      for (size_t i = 0; i < infos.size(); ++i) {
        for (size_t s = 0; s < shard.segments[b].size(); ++s) {
          const Segment& segment = shard.segments[b][s];
          const at::Tensor state = piece(shard.states[i], segment);
          if (shard.scales.empty()) {
            visit_segment(infos[i].name, segment, state);
            continue;
          }
          const at::Tensor scales = scales_of(shard, i, bucket, s);
          const at::Tensor values = decode_states(state, scales, infos[i].is_signed);
          visit_segment(infos[i].name, segment, values);
          encode_states(values, state, scales, infos[i].is_signed);
        }
      }
    }
  }
}

} // namespace trireme::optim
