// The part of FlatOptimizer that steps buckets on the host of a device.
#include <trireme/optim/flat_optimizer.h>

#include <trireme/base/error.h>

#include <torch/utils.h>

#include <algorithm>
#include <utility>

namespace trireme::optim {
namespace {

bool any_of(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), true) != flags.end();
}

} // namespace

bool FlatOptimizer::has_masters(const Shard& shard) {
  return any_of(shard.has_master);
}

void FlatOptimizer::place(Shard& shard) {
  std::vector<int64_t> numel;
  for (int64_t b = 0; b < shard.buckets(); ++b) {
    numel.push_back(owned(shard, b).numel());
  }
  if (!shard.buffer->device().is_cpu()) {
    shard.on_host = store_->on_host(numel, shard.buffer->device());
  }
  shard.on_host.resize(numel.size(), false);
  for (size_t b = 0; b < numel.size(); ++b) {
    shard.on_host[b] = shard.on_host[b] && numel[b] > 0;
    const bool is_copied = shard.on_host[b] && !shard.buffer->keeps_on_host(static_cast<int64_t>(b));
    shard.has_master.push_back(shard.low_precision || is_copied);
  }
}

bool FlatOptimizer::steps_all_on_host() const {
  for (const Shard& shard : shards_) {
    for (int64_t b = 0; b < shard.buckets(); ++b) {
      if (!shard.on_host[b] && owned(shard, b).numel() > 0) {
        return false;
      }
    }
  }
  return true;
}

void FlatOptimizer::prepare_host_steps(const HostStepOptions& options) {
  if (std::ranges::none_of(shards_, [](const Shard& shard) { return any_of(shard.on_host); })) {
    return;
  }
  if (!steps_all_on_host() && (needs_norms() || options.delayed)) {
    throw InputError("optim",
                     concat(needs_norms() ? concat(rule_->name(), " needs all parameters in one place for their norms")
                                          : "a delayed update needs all parameters on the host",
                            ", but the device steps a part of them"),
                     "Step all of them on the host (\"ratio\": 1).");
  }
  if (needs_norms() && options.delayed) {
    throw InputError(
        "optim",
        concat(rule_->name(),
               " cannot use a delayed update: its first phase needs all gradients, so the device would wait"),
        "Use AdamW, or remove delayed_update.");
  }
  std::vector<HostStep::Buffer> buffers;
  for (const Shard& shard : shards_) {
    HostStep::Buffer& buffer = buffers.emplace_back(HostStep::Buffer{shard.buffer, {}, {}});
    for (int64_t b = 0; b < shard.buckets(); ++b) {
      buffer.ranges.push_back(shard.on_host[b] ? owned(shard, b) : bucket::Range());
      buffer.counted.push_back(counted(shard, shard.buffer->plan().mine(b)));
    }
  }
  host_ = std::make_unique<HostStep>(
      device_, options, std::move(buffers),
      [this](int64_t buffer, int64_t bucket, const at::Tensor& to) { write_stepped(shards_[buffer], bucket, to); });
}

void FlatOptimizer::send_gradient(int64_t buffer, int64_t bucket) {
  shards_[buffer].buffer->send_gradient(bucket);
}

// Fills what no kernel writes: gaps between parameters, and parameters that the step skips.
void FlatOptimizer::fill_unstepped(const Shard& shard, const Chunk& chunk, const at::Tensor& master,
                                   const at::Tensor& parameters) const {
  int64_t end = 0;
  for (const Segment& segment : chunk.segments) {
    if (end < segment.begin) {
      parameters.slice(0, end, segment.begin).zero_();
    }
    if (is_left_out(shard, segment.parameter)) {
      parameters.slice(0, segment.begin, segment.end).copy_(master.slice(0, segment.begin, segment.end));
    }
    end = segment.end;
  }
  parameters.slice(0, end, parameters.numel()).zero_();
}

void FlatOptimizer::write_stepped(Shard& shard, int64_t bucket, const at::Tensor& parameters) {
  for (const Chunk& chunk : shard.chunks_of(bucket)) {
    at::Tensor part = part_of(shard, chunk, parameters);
    with_states(shard, chunk, true, [&](const BucketStates& states) {
      prefetch_after(shard, chunk);
      step_parts(shard, chunk, shard.low_precision ? part : at::Tensor(), states,
                 [&](ShardStep& one) { step(shard, one); });
      if (shard.low_precision) {
        fill_unstepped(shard, chunk, states.master, part);
      } else {
        part.copy_(states.master);
      }
    });
  }
}

void FlatOptimizer::step_on_host(Shard& shard, int64_t bucket) {
  shard.buffer->modify_owned_data(bucket, owned(shard, bucket), [&](const at::Tensor& data) {
    if (data.is_cpu()) { // a shard on the host, gathered from there
      step_chunks(shard, bucket, data, [&](ShardStep& one) { step(shard, one); });
    } else {
      host_->step(&shard - shards_.data(), bucket, data);
    }
  });
}

void FlatOptimizer::start_delayed() {
  host_->start();
}

void FlatOptimizer::drop_delayed() noexcept {
  if (host_) {
    host_->drop();
  }
}

void FlatOptimizer::finish_bucket(int64_t buffer, int64_t bucket) {
  if (host_) {
    host_->finish(buffer, bucket);
  }
}

} // namespace trireme::optim
