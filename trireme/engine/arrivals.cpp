#include <trireme/engine/arrivals.h>

#include <trireme/base/log.h>

#include <ATen/ATen.h>

#include <cstring>

namespace trireme::engine {
namespace {

constexpr size_t kWindow = monitor::kStepsOfExchange;
constexpr size_t kHistory = 2 * kWindow;
constexpr int64_t kStepsBetweenWarnings = 48;
constexpr int64_t kNumbers = sizeof(monitor::StepShare) / sizeof(double);
static_assert(sizeof(monitor::StepShare) == 6 * sizeof(double), "it is sent as an array of doubles");

} // namespace

Arrivals::Arrivals(comm::Group group) : group_(std::move(group)), history_(static_cast<size_t>(group_.size())) {}

void Arrivals::step(int64_t number, const monitor::StepShare& share, bool may_travel) {
  if (group_.size() == 1) {
    return;
  }
  if (travelling_ && may_travel) {
    travelling_->wait();
    travelling_.reset();
    compare(number);
  }
  if (mine_.size() == kWindow) {
    mine_.erase(mine_.begin());
  }
  mine_.push_back(share);
  if (mine_.size() == kWindow && may_travel) {
    exchange();
  }
}

void Arrivals::exchange() {
  const auto count = static_cast<int64_t>(kWindow) * kNumbers;
  sent_ = at::empty({count}, at::kDouble);
  received_ = at::empty({group_.size() * count}, at::kDouble);
  std::memcpy(sent_.data_ptr(), mine_.data(), sent_.nbytes());
  mine_.clear();
  travelling_ = group_.all_gather(received_, sent_, "step times");
}

void Arrivals::compare(int64_t step) {
  const auto* shares = static_cast<const monitor::StepShare*>(received_.data_ptr());
  for (size_t rank = 0; rank < history_.size(); ++rank) {
    auto& steps = history_[rank];
    steps.insert(steps.end(), shares + rank * kWindow, shares + (rank + 1) * kWindow);
    if (steps.size() > kHistory) {
      steps.erase(steps.begin(), steps.end() - static_cast<std::ptrdiff_t>(kHistory));
    }
  }
  straggler_ = history_.front().size() == kHistory ? monitor::find_straggler(history_) : std::nullopt;
  if (!straggler_) {
    return;
  }
  straggler_->rank = group_.members()[static_cast<size_t>(straggler_->rank)];
  if (group_.rank() == 0 && (warned_of_ != straggler_->rank || step - warned_at_ >= kStepsBetweenWarnings)) {
    log::warning(monitor::describe(*straggler_, straggler_->rank));
    warned_of_ = straggler_->rank;
    warned_at_ = step;
  }
}

} // namespace trireme::engine
