#include <trireme/optim/flat_optimizer.h>

#include <trireme/base/error.h>
#include <trireme/device/zero_pages.h>
#include <trireme/kernels/optimizer_args.h>
#include <trireme/optim/aten_kernels.h>
#include <trireme/optim/device_kernels.h>
#include <trireme/shards/bucket/chunks.h>

#include <torch/utils.h>

#include <algorithm>
#include <numeric>

namespace trireme::optim {
namespace {

static_assert(bucket::kChunkAlignment % kBlock == 0, "a chunk has whole blocks of the kernels");

int64_t blocks_of(const Segment& segment) {
  return optim::blocks_of(segment.end - segment.begin);
}

at::Tensor allocate_beside(int64_t numel, at::ScalarType type, at::Device device) {
  return device.is_cpu() ? device::zero_pages(numel, type)
                         : torch::zeros({numel}, at::TensorOptions(type).device(device));
}

} // namespace

FlatOptimizer::FlatOptimizer(std::vector<bucket::FlatParameters*> buffers, const OptionsOf& options_of,
                             const OptimizerOptions& options, bool sharded, std::unique_ptr<bucket::StateStore> store,
                             const HostStepOptions& host)
    : rule_(make_optimizer(options)),
      store_(store ? std::move(store) : bucket::make_memory_store(allocate_beside)),
      sharded_(sharded) {
  int64_t tensors = 0;
  for (bucket::FlatParameters* buffer : buffers) {
    std::vector<ParameterOptions> of_each;
    for (const bucket::TensorInfo& tensor : buffer->layout().tensors()) {
      if (rule_->needs_norms() && !tensor.placement.global_shape.empty()) {
        throw InputError("optim",
                         concat(rule_->name(), " needs the norm of the full parameter \"", tensor.name, "\", ",
                                tensor.placement.tile.empty() ? "but each rank has only a part of it"
                                                              : "but it is split into tiles"),
                         "Use AdamW.");
      }
      of_each.push_back(options_of(tensor));
    }
    Shard& shard = shards_.emplace_back();
    shard.buffer = buffer;
    shard.options = std::move(of_each);
    shard.low_precision = buffer->scalar_type() != torch::kFloat32;
    shard.first_norm = 2 * tensors;
    tensors += shard.buffer->count();
    group(shard);
    cut(shard);
    place(shard);
    keep(shard);
  }
  if (!shards_.empty()) {
    device_ = shards_.front().buffer->parameter(0).device();
    prepare_host_steps(host);
    if (options.state_type == StateType::int8 && !steps_all_on_host() &&
        &kernels_for(shards_.front().buffer->parameter(0)) == &kAtenKernels) {
      throw InputError(
          "optim",
          concat("8-bit optimizer states need Trireme's own kernels, and this build has none for ", device_.str(), '.'),
          "Use \"state_dtype\": \"bf16\", or build Trireme with nvcc.");
    }
  }
  if (rule_->needs_norms()) {
    norms_ =
        torch::zeros({2 * tensors}, at::TensorOptions(torch::kFloat64).device(steps_on_host() ? at::kCPU : device_));
    for (Shard& shard : shards_) {
      shard.norms = norms_.slice(0, shard.first_norm, shard.first_norm + 2 * shard.buffer->count());
    }
  }
}

bucket::Range FlatOptimizer::owned(const Shard& shard, int64_t bucket) const {
  const bucket::Bucket& whole = shard.buffer->layout().buckets()[bucket];
  return sharded_ ? shard.buffer->plan().mine(bucket) : bucket::Range{whole.begin, whole.end};
}

void FlatOptimizer::cut(Shard& shard) const {
  const bucket::FlatLayout& layout = shard.buffer->layout();
  std::copy_if(layout.slots().begin(), layout.slots().end(), std::back_inserter(shard.uncounted),
               [&](const bucket::Slot& slot) { return !layout.tensors()[slot.tensor].placement.counts_in_norm; });
  for (int64_t b = 0; b < std::ssize(layout.buckets()); ++b) {
    shard.first_chunk.push_back(std::ssize(shard.chunks));
    for (const bucket::Range& range : bucket::chunks_of(layout, b, owned(shard, b), store_->chunk_elements())) {
      Chunk& chunk = shard.chunks.emplace_back(Chunk{b, range, {}, {}});
      int64_t blocks = 0;
      for (const bucket::TensorRange& piece : layout.pieces_in(b, range)) {
        chunk.segments.push_back({piece.first, piece.first + piece.numel, piece.i});
        chunk.first_block.push_back(blocks);
        blocks += blocks_of(chunk.segments.back());
      }
    }
  }
  shard.first_chunk.push_back(std::ssize(shard.chunks));
}

// Order of arrays: the master, the states, the scales; with_states() relies on it.
void FlatOptimizer::keep(Shard& shard) {
  const bucket::FlatLayout& layout = shard.buffer->layout();
  std::vector<int64_t> elements;
  std::vector<int64_t> blocks;
  std::vector<std::string> names;
  for (const Chunk& chunk : shard.chunks) {
    elements.push_back(chunk.range.numel());
    int64_t& count = blocks.emplace_back(0);
    for (const Segment& segment : chunk.segments) {
      count += blocks_of(segment);
    }
    const bool is_first = shard.number(chunk) == shard.first_chunk[chunk.bucket];
    names.push_back(is_first || chunk.segments.empty()
                        ? layout.tensors()[layout.slots()[layout.buckets()[chunk.bucket].first_slot].tensor].name
                        : layout.tensors()[chunk.segments.front().parameter].name);
  }
  std::vector<bucket::StoredArray> arrays;
  if (has_masters(shard)) {
    bucket::StoredArray& masters = arrays.emplace_back(bucket::StoredArray{at::kFloat, 0, elements});
    for (size_t i = 0; i < elements.size(); ++i) {
      masters.numel[i] = shard.has_master[shard.chunks[i].bucket] ? elements[i] : 0;
    }
  }
  const bool coded = rule_->state_type() == StateType::int8;
  for (const StateInfo& info : rule_->states()) {
    const double code = info.initial == 0 ? 0 : info.is_signed ? kernels::kLargestSignedCode : kernels::kLargestCode;
    arrays.push_back({scalar_type(rule_->state_type()), coded ? code : info.initial, elements});
  }
  for (size_t i = 0; coded && i < rule_->states().size(); ++i) {
    arrays.push_back({at::kFloat, rule_->states()[i].initial, blocks});
  }
  for (const bucket::StoredArray& array : arrays) {
    bytes_ += std::accumulate(array.numel.begin(), array.numel.end(), int64_t{0}) *
              static_cast<int64_t>(c10::elementSize(array.type));
  }
  if (!arrays.empty()) {
    shard.in_store = store_->add(arrays, shard.buffer->parameter(0).device());
    store_->name_buckets(*shard.in_store, std::move(names));
  }
}

void FlatOptimizer::with_states(const Shard& shard, const Chunk& chunk, bool modifies,
                                const std::function<void(const BucketStates&)>& f) const {
  const size_t masters = has_masters(shard) ? 1 : 0;
  const size_t states = rule_->states().size();
  if (!shard.in_store) {
    f({});
    return;
  }
  store_->use(*shard.in_store, shard.number(chunk), modifies, [&](std::span<const at::Tensor> arrays) {
    f({shard.has_master[chunk.bucket] ? arrays.front() : at::Tensor(), arrays.subspan(masters, states),
       arrays.subspan(masters + states)});
  });
}

void FlatOptimizer::with_all_states(const Shard& shard, int64_t bucket, bool modifies,
                                    const std::function<void(const std::vector<BucketStates>&)>& f) const {
  const std::span<const Chunk> chunks = shard.chunks_of(bucket);
  std::vector<BucketStates> all;
  const std::function<void()> add_next = [&] {
    if (all.size() == chunks.size()) {
      f(all);
      return;
    }
    with_states(shard, chunks[all.size()], modifies, [&](const BucketStates& states) {
      all.push_back(states);
      add_next();
    });
  };
  add_next();
}

void FlatOptimizer::give_gradient(int64_t buffer, int64_t bucket, at::Tensor gradient) {
  Shard& shard = shards_[buffer];
  const int64_t numel = shard.buffer->layout().buckets()[bucket].numel();
  if (gradient.scalar_type() != at::kFloat || gradient.numel() != numel) {
    throw Error("optim", concat(rule_->name(), ": a gradient of ", gradient.numel(), ' ', gradient.scalar_type(),
                                " for a bucket of ", numel, ", expected fp32 of the bucket's size."));
  }
  shard.gradients.resize(shard.buckets());
  shard.gradients[bucket] = std::move(gradient);
}

at::Tensor FlatOptimizer::trust_ratios(int64_t buffer) const {
  return rule_->trust_ratios(shards_[buffer].norms);
}

// The kernels divide the roots of the two norms.
void FlatOptimizer::set_trust_ratios(int64_t buffer, const at::Tensor& ratios) {
  if (!needs_norms()) {
    throw Error("optim", concat(rule_->name(), " has no trust ratios."));
  }
  const at::Tensor pairs = shards_[buffer].norms.view({-1, 2});
  pairs.select(1, 0).copy_(ratios.square());
  pairs.select(1, 1).fill_(1);
  prepared_ = true;
}

void FlatOptimizer::leave_out(int64_t buffer, std::vector<bool> unused) {
  shards_[buffer].unused = std::move(unused);
}

void FlatOptimizer::step_rows(int64_t buffer, int64_t parameter, at::Tensor rows) {
  const bool is_cut = std::ssize(shards_[buffer].chunks) > shards_[buffer].buckets();
  if (sharded_ || needs_norms() || is_cut || rule_->state_type() == StateType::int8) {
    throw Error("optim", concat(rule_->name(), ": single rows of \"", shards_[buffer].buffer->name(parameter),
                                "\" cannot be stepped with ",
                                sharded_        ? "shards"
                                : needs_norms() ? "norms of whole parameters"
                                : is_cut        ? "states in chunks"
                                                : "8-bit states",
                                '.'));
  }
  shards_[buffer].rows[parameter] = std::move(rows);
}

at::Tensor FlatOptimizer::scales_of(const Chunk& chunk, const BucketStates& states, size_t state, size_t segment) {
  const int64_t begin = chunk.first_block[segment];
  return states.scales[state].slice(0, begin, begin + blocks_of(chunk.segments[segment]));
}

at::Tensor FlatOptimizer::part_of(const Shard& shard, const Chunk& chunk, const at::Tensor& data) const {
  const int64_t start = owned(shard, chunk.bucket).begin;
  return data.defined() ? data.slice(0, chunk.range.begin - start, chunk.range.end - start) : data;
}

// Covers segments [first, last) and the gaps between them, which are zero and stay zero.
ShardStep FlatOptimizer::shard_step(const Shard& shard, const Chunk& chunk, const at::Tensor& data,
                                    const BucketStates& states, size_t first, size_t last) const {
  const std::vector<Segment>& segments = chunk.segments;
  const int64_t bucket = chunk.bucket;
  const int64_t begin = segments[first].begin;
  const int64_t end = segments[last - 1].end;
  const bucket::Range range{chunk.range.begin + begin, chunk.range.begin + end};
  ShardStep step;
  if (!states.master.defined()) {
    step.param = data.slice(0, begin, end);
  } else {
    step.param = states.master.slice(0, begin, end);
    step.param_copy = data.defined() ? data.slice(0, begin, end) : at::Tensor();
  }
  const bool given = !shard.gradients.empty() && shard.gradients[bucket].defined();
  const int64_t first_of_bucket = shard.buffer->layout().buckets()[bucket].begin;
  step.grad = given ? shard.gradients[bucket].slice(0, range.begin - first_of_bucket, range.end - first_of_bucket)
              : shard.on_host[bucket] ? host_->gradient(&shard - shards_.data(), bucket, range)
                                      : shard.buffer->owned_grad(bucket, range);
  for (const at::Tensor& state : states.states) {
    step.states.push_back(state.slice(0, begin, end));
  }
  step.scales.assign(states.scales.begin(), states.scales.end());
  const ParameterOptions& options = shard.options[segments[first].parameter];
  step.lr = lr_ * options.lr_factor;
  step.betas = betas_;
  step.weight_decay = options.weight_decay;
  step.grad_scale = given ? 1 : grad_scale_;
  step.device_grad_scale = given ? at::Tensor() : device_grad_scale_;
  if (device_scalars_.defined() && !shard.on_host[bucket]) {
    step.step_scalars = device_scalars_;
  }
  step.step = steps_;
  step.held = held_;
  return step;
}

void FlatOptimizer::step_rows_of(const ShardStep& whole, const at::Tensor& rows, int64_t row_numel,
                                 const std::function<void(ShardStep&)>& f) {
  if (rows.numel() == 0) {
    return;
  }
  const auto taken = [&](const at::Tensor& from) {
    return from.defined() ? from.view({-1, row_numel}).index_select(0, rows).view({-1}) : at::Tensor();
  };
  ShardStep step = whole;
  step.param = taken(whole.param);
  step.param_copy = taken(whole.param_copy);
  step.grad = taken(whole.grad);
  for (at::Tensor& state : step.states) {
    state = taken(state);
  }
  std::vector<Segment> own = {whole.segments.front()};
  own.front().begin = 0;
  own.front().end = step.param.numel();
  step.segments = own;
  f(step);
  const auto put_back = [&](const at::Tensor& to, const at::Tensor& values) {
    if (to.defined()) {
      to.view({-1, row_numel}).index_copy_(0, rows, values.view({-1, row_numel}));
    }
  };
  put_back(whole.param, step.param);
  put_back(whole.param_copy, step.param_copy);
  for (size_t i = 0; i < whole.states.size(); ++i) {
    put_back(whole.states[i], step.states[i]);
  }
}

// Steps the chunk in one pass, but for parameters of which only rows are stepped. Neighbours with the same numbers are
// one segment unless each has norms or 8-bit blocks of its own.
void FlatOptimizer::step_parts(const Shard& shard, const Chunk& chunk, const at::Tensor& data,
                               const BucketStates& states, const std::function<void(ShardStep&)>& f) const {
  const std::vector<Segment>& segments = chunk.segments;
  const bool is_separate = needs_norms() || !states.scales.empty();
  std::vector<Segment> own;
  size_t next = 0; // after the last segment of `own`
  for (size_t s = 0; s < segments.size(); ++s) {
    const int64_t parameter = segments[s].parameter;
    if (is_left_out(shard, parameter)) {
      continue;
    }
    Segment segment = segments[s];
    segment.row = shard.group[parameter];
    segment.first_block = chunk.first_block[s];
    if (shard.rows.contains(parameter)) {
      ShardStep step = shard_step(shard, chunk, data, states, s, s + 1);
      step.segments = {&segment, 1};
      const std::vector<int64_t>& sizes = shard.buffer->layout().tensors()[parameter].sizes;
      step_rows_of(step, shard.rows.at(parameter), c10::multiply_integers(sizes.begin() + 1, sizes.end()), f);
      continue;
    }
    segment.begin -= segments.front().begin;
    segment.end -= segments.front().begin;
    if (!is_separate && !own.empty() && next == s && own.back().row == segment.row) {
      own.back().end = segment.end; // and the gap, which is zero and stays zero
    } else {
      own.push_back(segment);
    }
    next = s + 1;
  }
  if (!own.empty()) {
    const std::vector<kernels::StepScalars> rows = rows_at(lr_, betas_, steps_);
    ShardStep step = shard_step(shard, chunk, data, states, 0, segments.size());
    step.segments = own;
    step.rows = rows;
    f(step);
  }
}

void FlatOptimizer::step_chunks(const Shard& shard, int64_t bucket, const at::Tensor& data,
                                const std::function<void(ShardStep&)>& f) const {
  for (const Chunk& chunk : shard.chunks_of(bucket)) {
    with_states(shard, chunk, true, [&](const BucketStates& states) {
      prefetch_after(shard, chunk);
      step_parts(shard, chunk, part_of(shard, chunk, data), states, f);
    });
  }
}

void FlatOptimizer::for_each_step(const Shard& shard, int64_t bucket, bool modifies,
                                  const std::function<void(ShardStep&)>& f) const {
  const auto step_with = [&](const at::Tensor& data) { step_chunks(shard, bucket, data, f); };
  if (shard.on_host[bucket]) { // norms of a shard that stays on the host
    step_with(shard.buffer->owned_data(bucket, owned(shard, bucket)));
  } else {
    shard.buffer->with_owned_on_device(bucket, owned(shard, bucket), modifies, step_with);
  }
}

// Buckets are stepped in this order; the last is followed by the first, in the next pass or the next step.
void FlatOptimizer::prefetch_after(const Shard& shard, const Chunk& chunk) const {
  if (shard.number(chunk) == shard.first_chunk[chunk.bucket]) { // parameters are prefetched by bucket
    if (chunk.bucket + 1 < shard.buckets()) {
      shard.buffer->prefetch_data(chunk.bucket + 1);
    } else if (&shard != &shards_.back() && (&shard)[1].buckets() > 0) {
      (&shard)[1].buffer->prefetch_data(0);
    }
  }
  const Shard* next = &shard;
  int64_t c = shard.number(chunk);
  bool is_end = false;
  const int64_t named =
      std::max<int64_t>(1, store_->ahead() - 1); // writes follow each other at once: one more buffer is in use
  for (int64_t k = 1; k <= named; ++k) {
    if (++c == std::ssize(next->chunks)) {
      c = 0;
      is_end = is_end || next == &shards_.back();
      next = next == &shards_.back() ? &shards_.front() : next + 1;
    }
    if (next == &shard && c == shard.number(chunk)) {
      return;
    }
    if (next->in_store) {
      store_->prefetch(*next->in_store, c);
    }
    const bool is_other_bucket = next != &shard || next->chunks[c].bucket != chunk.bucket;
    if (k == 1 && !is_end && is_other_bucket) {
      next->buffer->prefetch_grad(next->chunks[c].bucket);
    }
  }
}

void FlatOptimizer::prepare() {
  if (!needs_norms() || prepared_) {
    return;
  }
  norms_.zero_();
  for (Shard& shard : shards_) {
    for (int64_t b = 0; b < shard.buckets(); ++b) {
      const auto add_norms = [&](ShardStep& step) { rule_->prepare(step, shard.norms); };
      send_gradient(&shard - shards_.data(), b);
      if (shard.has_master[b]) {
        step_chunks(shard, b, at::Tensor(), add_norms);
      } else {
        for_each_step(shard, b, /*modifies=*/false, add_norms);
      }
    }
  }
  if (sharded_ && !shards_.empty()) {
    if (!sum_over_) {
      throw Error("optim",
                  concat(rule_->name(), " needs sum_over(): norms are of parameters that lie on several ranks."));
    }
    for (size_t first = 0, last = 0; first < shards_.size(); first = last) {
      const int group = shards_[first].buffer->reduce_group();
      int64_t count = 0;
      for (; last < shards_.size() && shards_[last].buffer->reduce_group() == group; ++last) {
        count += 2 * shards_[last].buffer->count();
      }
      at::Tensor sums = norms_.slice(0, shards_[first].first_norm, shards_[first].first_norm + count);
      sum_over_(sums, group);
    }
  }
  prepared_ = true;
}

void FlatOptimizer::step_bucket(int64_t buffer, int64_t bucket) {
  if (needs_norms() && !prepared_) {
    throw Error("optim", concat(rule_->name(), ": step_bucket() before prepare()."));
  }
  Shard& shard = shards_[buffer];
  if (shard.on_host[bucket]) {
    send_gradient(buffer, bucket);
    if (host_->is_delayed()) {
      host_->add(buffer, bucket);
    } else {
      step_on_host(shard, bucket);
    }
    return;
  }
  for_each_step(shard, bucket, /*modifies=*/true, [&](ShardStep& one) { step(shard, one); });
  if (!shard.gradients.empty()) {
    shard.gradients[bucket] = at::Tensor();
  }
}

void FlatOptimizer::step(Shard& shard, ShardStep& step) const {
  if (needs_norms()) {
    step.norms = shard.norms;
  }
  rule_->step(step);
}

} // namespace trireme::optim
