#include <trireme/shards/zero/access_order.h>

#include <utility>

namespace trireme::zero {

void AccessOrder::begin(Pass pass) {
  begin({pass == Pass::training ? -1 : -2});
  next_stretch();
}

void AccessOrder::begin(std::vector<int> stretches) {
  end_stretch();
  stretches_ = std::move(stretches);
  begun_ = 0;
}

void AccessOrder::next_stretch() {
  end_stretch();
  if (begun_ < stretches_.size()) {
    running_ = stretches_[begun_++];
  }
}

// Records a stretch without units too, unless an earlier run recorded it.
void AccessOrder::end_stretch() {
  if (running_ && (!now_.empty() || known_.count(*running_) == 0)) {
    known_[*running_] = std::move(now_);
  }
  running_.reset();
  now_.clear();
  as_before_ = true;
}

void AccessOrder::note(const void* unit) {
  if (!running_) {
    return;
  }
  const auto before = known_.find(*running_);
  const size_t at = now_.size();
  as_before_ = as_before_ && before != known_.end() && at < before->second.size() && before->second[at] == unit;
  now_.push_back(unit);
}

void AccessOrder::for_each_upcoming(const std::function<bool(const void* unit)>& visit) const {
  // Visits the known units of a stretch from `first` on; true if the stretch is known and was visited to its end.
  const auto visit_from = [&](int stretch, size_t first) {
    const auto before = known_.find(stretch);
    if (before == known_.end()) {
      return false;
    }
    for (size_t i = first; i < before->second.size(); ++i) {
      if (!visit(before->second[i])) {
        return false;
      }
    }
    return true;
  };
  if (running_ && (!as_before_ || !visit_from(*running_, now_.size()))) {
    return;
  }
  for (size_t i = begun_; i < stretches_.size() && visit_from(stretches_[i], 0); ++i) {
  }
}

void AccessOrder::for_each_of_next_pass(const std::function<bool(const void* unit)>& visit) const {
  const auto first = stretches_.empty() ? known_.end() : known_.find(stretches_.front());
  if (!as_before_ || first == known_.end()) {
    return;
  }
  for (const void* const unit : first->second) {
    if (!visit(unit)) {
      return;
    }
  }
}

} // namespace trireme::zero
