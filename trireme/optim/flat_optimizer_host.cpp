// What a FlatOptimizer steps on the host of a device.
#include <trireme/optim/flat_optimizer.h>

#include <trireme/base/error.h>

#include <torch/utils.h>

#include <algorithm>
#include <utility>

namespace trireme::optim {
namespace {

/// Buckets whose new parameters may be on their way to the device while the next one is stepped.
constexpr size_t kReturning = 3;

bool any_of(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), true) != flags.end();
}

} // namespace

bool FlatOptimizer::has_masters(const Shard& shard) {
  return any_of(shard.has_master);
}

void FlatOptimizer::place(Shard& shard) {
  std::vector<int64_t> numel;
  for (int64_t b = 0; b < std::ssize(shard.segments); ++b) {
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
    for (int64_t b = 0; b < std::ssize(shard.segments); ++b) {
      if (!shard.on_host[b] && owned(shard, b).numel() > 0) {
        return false;
      }
    }
  }
  return true;
}

void FlatOptimizer::prepare_host_steps() {
  size_t buckets = 0;
  for (const Shard& shard : shards_) {
    buckets += static_cast<size_t>(std::count(shard.on_host.begin(), shard.on_host.end(), true));
  }
  if (buckets == 0) {
    return;
  }
  if (!steps_all_on_host() && (needs_norms() || host_.delayed)) {
    throw InputError(
        "optim",
        concat(needs_norms() ? concat(rule_->name(), ", which needs the norms of whole parameters in one place,")
                             : "a delayed update",
               " with a part of the parameters on the device"),
        "Let all of them be stepped on the host (\"ratio\": 1).");
  }
  if (needs_norms() && host_.delayed) {
    throw InputError("optim",
                     concat(rule_->name(),
                            " with a delayed update: its first phase needs all gradients and would hold the device up"),
                     "Use AdamW, or no delayed_update.");
  }
  if (!host_.gradients) {
    host_.gradients =
        bucket::make_memory_store([pinned = host_.pinned](int64_t numel, at::ScalarType type, at::Device device) {
          return device::pinned_host(numel, type, pinned ? device.type() : at::kCPU);
        });
  }
  to_device_ = std::make_unique<ParametersToDevice>(device_, host_.pinned, host_.delayed ? buckets : kReturning);
  for (Shard& shard : shards_) {
    if (any_of(shard.on_host)) {
      bring_gradients(shard);
    }
  }
}

void FlatOptimizer::bring_gradients(Shard& shard) {
  bucket::HostGradientOptions options;
  options.type = shard.buffer->gradient_type();
  options.device = device_;
  options.store = host_.gradients;
  options.names = shard.buffer->layout().first_names();
  options.add_up_there = host_.add_up_there && shard.buffer->gradients_are_sharded();
  options.sets = host_.delayed ? 2 : 1;
  shard.results.resize(shard.segments.size());
  for (int64_t b = 0; b < std::ssize(shard.segments); ++b) {
    options.ranges.push_back(shard.on_host[b] ? owned(shard, b) : bucket::Range());
  }
  if (options.add_up_there) {
    const auto norms = std::make_shared<LeftNorms>();
    for (int64_t b = 0; b < std::ssize(shard.segments); ++b) {
      norms->pieces.push_back(shard.on_host[b] ? counted(shard, shard.buffer->plan().mine(b))
                                               : std::vector<bucket::Range>());
      norms->sums.push_back(
          torch::zeros({std::ssize(norms->pieces.back())}, at::TensorOptions(torch::kFloat64).device(device_)));
    }
    options.leaving = [norms, ranges = options.ranges](int64_t b, const at::Tensor& values) {
      for (int64_t i = 0; i < std::ssize(norms->pieces[b]); ++i) {
        const bucket::Range& piece = norms->pieces[b][i];
        at::Tensor sum = norms->sums[b].slice(0, i, i + 1);
        add_squared_norm(values.slice(0, piece.begin - ranges[b].begin, piece.end - ranges[b].begin), sum.zero_());
      }
    };
    shard.left_norms = norms;
  }
  shard.buffer->bring_gradients_to_host(std::move(options));
}

void FlatOptimizer::send_gradient(int64_t buffer, int64_t bucket) {
  shards_[buffer].buffer->send_gradient(bucket);
}

// What no kernel writes: gaps between parameters, and parameters that the step leaves out.
void FlatOptimizer::fill_unstepped(const Shard& shard, int64_t bucket, const at::Tensor& master,
                                   const at::Tensor& parameters) const {
  int64_t end = 0;
  for (const Segment& segment : shard.segments[bucket]) {
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

at::Tensor FlatOptimizer::new_parameters(Shard& shard, int64_t bucket, const BucketStates& states) {
  const at::Tensor parameters = to_device_->take(owned(shard, bucket).numel(), shard.buffer->scalar_type());
  step_parts(shard, bucket, shard.low_precision ? parameters : at::Tensor(), states,
             [&](ShardStep& one) { step(shard, one); });
  if (shard.low_precision) {
    fill_unstepped(shard, bucket, states.master, parameters);
  } else {
    parameters.copy_(states.master);
  }
  return parameters;
}

void FlatOptimizer::step_on_host(Shard& shard, int64_t bucket) {
  shard.buffer->modify_owned_data(bucket, owned(shard, bucket), [&](const at::Tensor& data) {
    with_states(shard, bucket, true, [&](const BucketStates& states) {
      prefetch_after(shard, bucket);
      if (data.is_cpu()) { // a shard that is gathered from here
        step_parts(shard, bucket, data, states, [&](ShardStep& one) { step(shard, one); });
      } else {
        to_device_->send(new_parameters(shard, bucket, states), data);
      }
    });
  });
}

void FlatOptimizer::start_delayed() {
  for (Shard& shard : shards_) {
    if (bucket::HostGradients* const gradients = shard.buffer->host_gradients()) {
      shard.gradient_set = gradients->lend();
    }
  }
  delayed_ = std::async(std::launch::async, [this] {
    const torch::NoGradGuard no_grad;
    device::make_current(device_);
    for (const auto& [buffer, bucket] : queued_) {
      Shard& shard = shards_[buffer];
      with_states(shard, bucket, true, [&, bucket = bucket](const BucketStates& states) {
        prefetch_after(shard, bucket);
        shard.results[bucket] = new_parameters(shard, bucket, states);
      });
    }
  });
}

void FlatOptimizer::drop_delayed() noexcept {
  if (delayed_.valid()) {
    delayed_.wait();
    delayed_ = {};
  }
  queued_.clear();
  finished_.clear();
}

void FlatOptimizer::finish_bucket(int64_t buffer, int64_t bucket) {
  if (delayed_.valid()) {
    std::vector<std::pair<int64_t, int64_t>> begun;
    delayed_.wait();
    begun.swap(queued_);
    delayed_.get();
    finished_ = std::move(begun);
  }
  const auto found = std::find(finished_.begin(), finished_.end(), std::pair(buffer, bucket));
  if (found == finished_.end()) {
    return;
  }
  finished_.erase(found);
  Shard& shard = shards_[buffer];
  shard.buffer->modify_owned_data(bucket, owned(shard, bucket),
                                  [&](const at::Tensor& data) { to_device_->send(shard.results[bucket], data); });
}

} // namespace trireme::optim
