#include <trireme/bucket/host_gradients.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

namespace trireme::bucket {

HostGradients::HostGradients(HostGradientOptions options)
    : options_(std::move(options)), sent_(options_.ranges.size(), false), last_(options_.device.type()) {
  for (int set = 0; set < options_.sets; ++set) {
    std::vector<Arrival>& buckets = sets_.emplace_back();
    for (size_t b = 0; b < options_.ranges.size(); ++b) {
      buckets.push_back({at::Tensor(), device::Event(options_.device.type())});
    }
  }
}

void HostGradients::send(int64_t b, const at::Tensor& values, bool adds) {
  const at::NoGradGuard no_grad;
  const c10::Stream own = streams_.on(options_.device);
  device::Event ready(options_.device.type());
  ready.record(device::current_stream(options_.device));
  const device::OnStream on(own);
  ready.block(own);
  device::record_stream(values, own);
  Arrival& home = sets_[current_][b];
  if (!home.values.defined()) {
    home.values = device::pinned_host(options_.ranges[b].numel(), options_.type, options_.pinned ? options_.device.type() : at::kCPU);
  }
  at::Tensor leaves = values;
  if (adds) {
    leaves = at::empty_like(values);
    leaves.copy_(home.values, /*non_blocking=*/true);
    leaves.add_(values);
  }
  if (options_.leaving) {
    options_.leaving(b, leaves);
  }
  home.values.copy_(leaves, /*non_blocking=*/true);
  home.arrived.record(own);
  last_.record(own);
  sent_[b] = true;
}

at::Tensor HostGradients::wait(int64_t b, const Range& range, int set) const {
  const Arrival& home = sets_[set][b];
  if (!home.arrived.done()) {
    home.arrived.synchronize();
  }
  const int64_t begin = options_.ranges[b].begin;
  return home.values.slice(0, range.begin - begin, range.end - begin);
}

void HostGradients::order_current_stream() {
  last_.block(device::current_stream(options_.device));
}

int HostGradients::lend() {
  return std::exchange(current_, (current_ + 1) % options_.sets);
}

void HostGradients::start_over() {
  order_current_stream();
  sent_.assign(sent_.size(), false);
}

} // namespace trireme::bucket
