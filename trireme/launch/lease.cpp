#include <trireme/launch/lease.h>

#include <time.h>

namespace trireme::launch {

HostTime host_time() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

} // namespace trireme::launch
