#include <trireme/shards/bucket/host_gradients.h>

#include <trireme/shards/bucket/state_store.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace trireme::bucket {
namespace {

/// Buckets that may be on their stream at a time. A store in files has memory for a third one, which is written, or
/// read for an addition.
constexpr size_t kLeaving = 2;

} // namespace

HostGradients::HostGradients(HostGradientOptions options)
    : options_(std::move(options)),
      sets_(static_cast<size_t>(options_.sets)),
      sent_(options_.ranges.size(), false),
      last_(options_.device.type()) {
  StoredArray gradients{options_.type, 0, {}};
  for (const Range& range : options_.ranges) {
    gradients.numel.push_back(range.numel());
  }
  options_.store->on_host(gradients.numel, options_.device); // must be called before add(); all buckets are on the host
  for (Set& set : sets_) {
    set.in_store = options_.store->add({gradients}, options_.device);
    options_.store->name_buckets(set.in_store, options_.names);
    set.arrived.resize(options_.ranges.size());
  }
}

void HostGradients::send(int64_t b, const at::Tensor& values, bool adds) {
  const at::NoGradGuard no_grad;
  Set& set = sets_[static_cast<size_t>(current_)];
  while (set.leaving.size() >= kLeaving || std::find(set.leaving.begin(), set.leaving.end(), b) != set.leaving.end()) {
    release_first(set);
  }
  if (!adds) {
    options_.store->forget(set.in_store, b);
  }
  const at::Tensor home = options_.store->acquire(set.in_store, b).front();
  set.leaving.push_back(b);
  sent_[b] = true;
  prefetch_after(b);

  const c10::Stream own = streams_.on(options_.device);
  const device::OnStream on(own, device::current_stream(options_.device));
  device::record_stream(values, own);
  at::Tensor leaves = values;
  if (adds) {
    leaves = at::empty_like(values);
    leaves.copy_(home, /*non_blocking=*/true);
    leaves.add_(values);
  }
  if (options_.leaving) {
    options_.leaving(b, leaves);
  }
  at::Tensor(home).copy_(leaves, /*non_blocking=*/true);
  const auto arrived = std::make_shared<device::Event>(options_.device.type());
  arrived->record(own);
  last_.record(own);
  set.arrived[static_cast<size_t>(b)] = arrived;
  if (!options_.store->keep_until(set.in_store, b, arrived)) {
    arrived->synchronize();
  }
}

void HostGradients::release_first(Set& set) {
  const int64_t b = set.leaving.front();
  set.leaving.pop_front();
  options_.store->release(set.in_store, b, true);
}

// Buckets are sent in this order; the last is followed by the first, of the next micro-batch or of the step.
void HostGradients::prefetch_after(int64_t b) {
  const auto buckets = std::ssize(sent_);
  const int64_t named =
      std::min(std::max<int64_t>(1, options_.store->ahead() - 1), buckets - 1); // the buffer that remains is being sent
  for (int64_t k = 1; k <= named; ++k) {
    prefetch((b + k) % buckets);
  }
}

at::Tensor HostGradients::wait(int64_t b, const Range& range, int of) {
  Set& set = sets_[static_cast<size_t>(of)];
  while (!set.leaving.empty()) {
    release_first(set);
  }
  if (const auto& arrived = set.arrived[static_cast<size_t>(b)]; arrived && !arrived->done()) {
    arrived->synchronize();
  }
  const int64_t begin = options_.ranges[b].begin;
  at::Tensor values;
  options_.store->use(set.in_store, b, false, [&](const std::vector<at::Tensor>& arrays) {
    values = arrays.front().slice(0, range.begin - begin, range.end - begin);
  });
  return values;
}

void HostGradients::prefetch(int64_t b) {
  if (sets_.size() == 1 && sent_[b]) {
    options_.store->prefetch(sets_.front().in_store, b);
  }
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
