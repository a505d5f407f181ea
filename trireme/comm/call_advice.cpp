#include <trireme/comm/call_advice.h>

#include <map>
#include <mutex>

namespace trireme::comm {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::string, std::string> by_group;
};

Table& table() {
  static auto* const made = new Table; // threads may use it while the process ends
  return *made;
}

} // namespace

void set_advice(const std::string& group, const std::string& advice) {
  const std::lock_guard lock(table().mutex);
  table().by_group[group] = advice;
}

std::string advice_for(const std::string& group) {
  const std::lock_guard lock(table().mutex);
  const auto found = table().by_group.find(group);
  return found == table().by_group.end() ? "" : found->second;
}

std::string advice_in(const std::string& error) {
  const std::lock_guard lock(table().mutex);
  for (const auto& [group, advice] : table().by_group) {
    if (error.ends_with(advice)) {
      return advice;
    }
  }
  return "";
}

} // namespace trireme::comm
