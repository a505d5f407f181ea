#include <trireme/zero/access_order.h>

#include <utility>

namespace trireme::zero {

void AccessOrder::begin(Pass pass) {
  trace_ = &traces_[pass == Pass::training ? 0 : 1];
  if (!trace_->now.empty()) {
    std::swap(trace_->before, trace_->now);
    trace_->now.clear();
  }
  trace_->as_before = true;
}

void AccessOrder::note(const void* unit) {
  Trace& trace = *trace_;
  const size_t at = trace.now.size();
  trace.as_before = trace.as_before && at < trace.before.size() && trace.before[at] == unit;
  trace.now.push_back(unit);
}

std::span<const void* const> AccessOrder::upcoming() const {
  return trace_->as_before ? std::span(trace_->before).subspan(trace_->now.size()) : std::span<const void* const>();
}

} // namespace trireme::zero
