#include <trireme/comm/leaving.h>

#include <numeric>
#include <utility>

namespace trireme::comm {
namespace {

/// A rank that is silent this long while others leave counts as dead.
constexpr std::chrono::milliseconds kSilentLeaver{5000};

} // namespace

bool Leaving::step(int64_t left, const std::set<int>& dead, bool failed) {
  const auto now = Clock::now();
  done_ = left + static_cast<int64_t>(dead.size()) >= size_ || !waits_ || now >= deadline_ || failed;
  if (!done_ && !farewell_) {
    std::vector<int> all(static_cast<size_t>(size_));
    std::iota(all.begin(), all.end(), 0);
    farewell_ = roll_calls_.add(all, "", now + kSilentLeaver, false);
    others_are_new_ = false;
  } else if (!done_ && farewell_->answered) {
    if (!std::exchange(others_are_new_, true)) {
      others_ = farewell_->result.peers;
    }
    if (now < farewell_->deadline) {
      return done_;
    }
    for (const auto& [rank, peer] : farewell_->result.peers) {
      if (!peer.answered && !peer.left) {
        silent_.emplace(rank, peer);
      }
    }
    done_ = done_ || !silent_.empty();
    farewell_.reset();
  }
  return done_;
}

} // namespace trireme::comm
