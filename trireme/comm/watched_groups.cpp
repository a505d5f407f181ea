#include <trireme/comm/watched_groups.h>

#include <algorithm>

namespace trireme::comm {

void WatchedGroups::add(std::weak_ptr<Watched> group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& weak) { return weak.expired(); });
  groups_.push_back(std::move(group));
}

std::vector<std::shared_ptr<Watched>> WatchedGroups::live() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Watched>> found;
  for (const auto& weak : groups_) {
    if (auto group = weak.lock()) {
      found.push_back(std::move(group));
    }
  }
  return found;
}

int64_t WatchedGroups::version() const {
  int64_t sum = 0;
  for (const auto& group : live()) {
    sum += group->version() + 1;
  }
  return sum;
}

std::map<std::string, GroupView> WatchedGroups::views() const {
  std::map<std::string, GroupView> views;
  for (const auto& group : live()) {
    views[group->key()] = {group->name(), group->members(), group->progress()};
  }
  return views;
}

void WatchedGroups::follow_devices() const {
  for (const auto& group : live()) {
    group->follow_device();
  }
}

std::vector<WatchedGroups::LongWait> WatchedGroups::waits(double seconds) const {
  std::vector<LongWait> found;
  for (auto& group : live()) {
    if (const auto wait = group->waiting(); wait && wait->seconds >= seconds) {
      found.push_back({std::move(group), *wait});
    }
  }
  return found;
}

void WatchedGroups::fail(const std::string& why) const {
  for (const auto& group : live()) {
    group->fail(why);
  }
}

void WatchedGroups::interrupt(const std::set<int>& ranks) const {
  for (const auto& group : live()) {
    if (std::any_of(group->members().begin(), group->members().end(),
                    [&](int rank) { return ranks.count(rank) != 0; })) {
      group->interrupt();
    }
  }
}

} // namespace trireme::comm
