#include <trireme/engine/peak_memory.h>

#include <trireme/comm/host_memory.h>
#include <trireme/monitor/resources.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace trireme::engine {
namespace {

constexpr std::chrono::milliseconds kInterval(20);

int64_t own_memory_now() {
  return monitor::current_private_bytes() + comm::own_shared_bytes();
}

// Its thread runs until the process ends, and uses nothing that is destroyed earlier.
class Sampler {
 public:
  Sampler() {
    std::thread([this] {
      for (;;) {
        look();
        std::this_thread::sleep_for(kInterval);
      }
    }).detach();
  }
  int64_t look() {
    const int64_t now = own_memory_now();
    int64_t peak = peak_;
    while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
    }
    return std::max(now, peak);
  }

 private:
  std::atomic<int64_t> peak_ = 0;
};

} // namespace

int64_t peak_memory_bytes() {
  if (comm::own_shared_bytes() == 0) {
    return monitor::peak_rss_bytes();
  }
  static auto* const sampler = new Sampler();
  return sampler->look();
}

} // namespace trireme::engine
