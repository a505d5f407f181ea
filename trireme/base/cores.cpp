#include <trireme/base/cores.h>

#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace trireme {

int usable_cores() {
  cpu_set_t mask;
  // More than 1024 cores do not fit the fixed mask; then the count of those online.
  const int cores = ::sched_getaffinity(0, sizeof(mask), &mask) == 0
                        ? CPU_COUNT(&mask)
                        : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(1, cores);
}

} // namespace trireme
