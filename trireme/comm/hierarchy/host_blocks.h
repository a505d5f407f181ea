#pragma once

#include <optional>
#include <vector>

namespace trireme::comm {

/// Members of a group ordered by host, equally many on each: member h * per_host + l is the l-th of host h.
struct HostBlocks {
  int hosts = 1;
  int per_host = 1;
};

/// The blocks of a group whose member i runs on host `hosts[i]` (any numbering). nullopt if members of one host are not
/// adjacent, or hosts have different numbers of them.
std::optional<HostBlocks> host_blocks(const std::vector<int>& hosts);

} // namespace trireme::comm
