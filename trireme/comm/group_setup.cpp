#include <trireme/comm/group_setup.h>

#include <trireme/base/error.h>
#include <trireme/comm/backend.h>

#include <algorithm>

namespace trireme::comm {

bool GroupSetup::one_host() const {
  return std::all_of(hosts.begin(), hosts.end(), [&](int host) { return host == hosts.front(); });
}

std::vector<std::string> exchange(GroupSetup& setup, const std::string& key, const std::string& mine) {
  std::vector<std::string> keys;
  for (int member = 0; member < setup.size; ++member) {
    keys.push_back(concat(key, "/", member));
  }
  setup.store.set(keys[static_cast<size_t>(setup.rank)], mine);
  if (!setup.store.wait(keys, setup.patience)) {
    throw Trouble(Trouble::Kind::deadline, "a member did not come in time");
  }
  std::vector<std::string> values;
  for (const auto& name : keys) {
    values.push_back(setup.store.find(name).value_or(""));
  }
  return values;
}

} // namespace trireme::comm
