#include <trireme/comm/last_wills.h>

#include <string>
#include <vector>

namespace trireme::comm {
namespace {

constexpr const char* kPulse = "pulse";
constexpr const char* kGone = "gone";
constexpr const char* kHostLeft = "host_left";

std::string gone_key(int rank) {
  return "gone/" + std::to_string(rank);
}

} // namespace

LastWills::Seen LastWills::look(Store& store) {
  if (!kept_) {
    kept_ = store.last_will(gone_key(rank_), "", kGone);
  }
  if (!*kept_) {
    return {.pulse = store.add(kPulse, 0)};
  }
  const auto counters = store.find_all({kPulse, kGone, kHostLeft});
  const auto number = [](const std::optional<std::string>& text) { return text ? std::stoll(*text) : int64_t{0}; };
  Seen seen{.pulse = number(counters[0]), .host_left = counters[2].has_value()};
  const int64_t gone = number(counters[1]);
  if (gone == seen_) {
    return seen;
  }
  seen_ = gone;
  std::vector<std::string> keys;
  for (int rank = 0; rank < size_; ++rank) {
    keys.push_back(gone_key(rank));
  }
  const auto found = store.find_all(keys);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && found[static_cast<size_t>(rank)] && gone_.insert(rank).second) {
      seen.gone.insert(rank);
    }
  }
  return seen;
}

void LastWills::take_back(Store& store, bool is_host) {
  if (kept_.value_or(false)) {
    store.last_will("", "");
  }
  if (is_host) {
    store.set(kHostLeft, "1");
  }
}

} // namespace trireme::comm
