#include <trireme/comm/opening.h>

#include <utility>

namespace trireme::comm {

Opening::Opening(std::string key, std::string name, std::vector<int> members)
    : key_(std::move(key)), name_(std::move(name)), members_(std::move(members)) {}

GroupProgress Opening::progress() const {
  GroupProgress progress;
  progress.note({1, "open", 0, "Byte", "", -1, false});
  progress.waiting = waiting();
  return progress;
}

} // namespace trireme::comm
