#include <trireme/comm/hierarchy/host_blocks.h>

#include <algorithm>
#include <set>

namespace trireme::comm {

std::optional<HostBlocks> host_blocks(const std::vector<int>& hosts) {
  if (hosts.empty()) {
    return std::nullopt;
  }
  const auto next_host = std::find_if(hosts.begin(), hosts.end(), [&](int host) { return host != hosts.front(); });
  const auto per_host = static_cast<size_t>(next_host - hosts.begin());
  if (hosts.size() % per_host != 0) {
    return std::nullopt;
  }
  std::set<int> seen;
  for (size_t begin = 0; begin < hosts.size(); begin += per_host) {
    const auto first = hosts.begin() + static_cast<std::ptrdiff_t>(begin);
    const bool one_host =
        std::all_of(first, first + static_cast<std::ptrdiff_t>(per_host), [&](int host) { return host == *first; });
    if (!one_host || !seen.insert(*first).second) {
      return std::nullopt;
    }
  }
  return HostBlocks{static_cast<int>(seen.size()), static_cast<int>(per_host)};
}

} // namespace trireme::comm
