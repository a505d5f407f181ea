#include <trireme/optim/host_step.h>

#include <trireme/optim/optimizer.h>
#include <trireme/optim/returning.h>
#include <trireme/shards/bucket/host_gradients.h>

#include <torch/utils.h>

#include <algorithm>

namespace trireme::optim {
namespace {

size_t stepped_buckets(const std::vector<HostStep::Buffer>& buffers) {
  size_t count = 0;
  for (const HostStep::Buffer& buffer : buffers) {
    count += static_cast<size_t>(
        std::ranges::count_if(buffer.ranges, [](const bucket::Range& range) { return range.numel() > 0; }));
  }
  return count;
}

} // namespace

HostStep::HostStep(at::Device device, const HostStepOptions& options, std::vector<Buffer> buffers,
                   WriteStepped write_stepped)
    : device_(device),
      options_(options),
      write_stepped_(std::move(write_stepped)),
      to_device_(device, options.pinned,
                 options.delayed ? stepped_buckets(buffers) : static_cast<size_t>(kReturningBuckets)) {
  if (!options_.gradients) {
    options_.gradients =
        bucket::make_memory_store([pinned = options_.pinned](int64_t numel, at::ScalarType type, at::Device on) {
          return device::pinned_host(numel, type, pinned ? on.type() : at::kCPU).zero_();
        });
  }
  for (Buffer& buffer : buffers) {
    Kept& kept = buffers_.emplace_back(Kept{std::move(buffer), nullptr, 0, {}});
    kept.results.resize(kept.buffer.ranges.size());
    if (stepped_buckets({kept.buffer}) > 0) {
      bring_gradients(kept);
    }
  }
}

void HostStep::bring_gradients(Kept& kept) const {
  bucket::FlatParameters& parameters = *kept.buffer.parameters;
  bucket::HostGradientOptions options;
  options.ranges = kept.buffer.ranges;
  options.type = parameters.gradient_type();
  options.device = device_;
  options.store = options_.gradients;
  options.names = parameters.layout().first_names();
  options.add_up_there = options_.add_up_there && parameters.gradients_are_sharded();
  options.sets = options_.delayed ? 2 : 1;
  if (options.add_up_there) {
    const auto norms = std::make_shared<LeftNorms>();
    for (size_t b = 0; b < options.ranges.size(); ++b) {
      norms->parts.push_back(options.ranges[b].numel() > 0 ? kept.buffer.counted[b] : std::vector<bucket::Range>());
      norms->sums.push_back(
          torch::zeros({std::ssize(norms->parts.back())}, at::TensorOptions(torch::kFloat64).device(device_)));
    }
    options.leaving = [norms, ranges = options.ranges](int64_t b, const at::Tensor& values) {
      for (int64_t i = 0; i < std::ssize(norms->parts[b]); ++i) {
        const bucket::Range& part = norms->parts[b][i];
        at::Tensor sum = norms->sums[b].slice(0, i, i + 1);
        add_squared_norm(values.slice(0, part.begin - ranges[b].begin, part.end - ranges[b].begin), sum.zero_());
      }
    };
    kept.left_norms = norms;
  }
  parameters.bring_gradients_to_host(std::move(options));
}

at::Tensor HostStep::gradient(int64_t buffer, int64_t bucket, const bucket::Range& range) const {
  const Kept& kept = buffers_[buffer];
  return kept.buffer.parameters->host_gradients()->wait(bucket, range, kept.gradient_set);
}

bool HostStep::add_left_norm(int64_t buffer, int64_t bucket, const at::Tensor& sum) const {
  const Kept& kept = buffers_[buffer];
  if (!kept.left_norms || kept.buffer.ranges[bucket].numel() == 0) {
    return false;
  }
  kept.buffer.parameters->host_gradients()->order_current_stream();
  const at::Tensor& sums = kept.left_norms->sums[bucket];
  for (int64_t part = 0; part < sums.numel(); ++part) {
    at::Tensor(sum).add_(sums.slice(0, part, part + 1));
  }
  return true;
}

at::Tensor HostStep::stepped(int64_t buffer, int64_t bucket) {
  const Buffer& of = buffers_[buffer].buffer;
  at::Tensor parameters = to_device_.take(of.ranges[bucket].numel(), of.parameters->scalar_type());
  write_stepped_(buffer, bucket, parameters);
  return parameters;
}

void HostStep::step(int64_t buffer, int64_t bucket, const at::Tensor& data) {
  to_device_.send(stepped(buffer, bucket), data);
}

void HostStep::start() {
  for (Kept& kept : buffers_) {
    if (bucket::HostGradients* const gradients = kept.buffer.parameters->host_gradients()) {
      kept.gradient_set = gradients->lend();
    }
  }
  delayed_ = std::async(std::launch::async, [this] {
    const torch::NoGradGuard no_grad;
    device::make_current(device_);
    for (const auto& [buffer, bucket] : queued_) {
      buffers_[buffer].results[bucket] = stepped(buffer, bucket);
    }
  });
}

void HostStep::drop() noexcept {
  if (delayed_.valid()) {
    delayed_.wait();
    delayed_ = {};
  }
  queued_.clear();
  finished_.clear();
}

void HostStep::finish(int64_t buffer, int64_t bucket) {
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
  const Kept& kept = buffers_[buffer];
  kept.buffer.parameters->modify_owned_data(
      bucket, kept.buffer.ranges[bucket], [&](const at::Tensor& data) { to_device_.send(kept.results[bucket], data); });
}

} // namespace trireme::optim
