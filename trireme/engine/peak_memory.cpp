#include <trireme/engine/peak_memory.h>

#include <trireme/comm/host_memory.h>
#include <trireme/monitor/resources.h>

namespace trireme::engine {

int64_t peak_memory_bytes() {
  return monitor::peak_rss_bytes() - comm::memory_of_peers_bytes();
}

} // namespace trireme::engine
