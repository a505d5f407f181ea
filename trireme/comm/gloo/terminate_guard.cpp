#include <trireme/comm/gloo/terminate_guard.h>

#include <cxxabi.h>
#include <unistd.h>

#include <cstring>
#include <exception>
#include <vector>

namespace trireme::comm {
namespace {

struct Guard {
  std::mutex mutex;
  std::vector<std::weak_ptr<GlooShared>> groups;
  std::terminate_handler previous = nullptr;
};

/// Never destroyed: the handler may run while the process ends.
Guard& guard() {
  static auto* instance = new Guard;
  return *instance;
}

bool thrown_by_gloo() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  return type != nullptr && std::strncmp(type->name(), "N4gloo", 6) == 0;
}

[[noreturn]] void on_terminate() {
  Guard& state = guard();
  if (!thrown_by_gloo()) {
    if (state.previous != nullptr) {
      state.previous();
    }
    std::abort();
  }
  {
    const std::lock_guard lock(state.mutex);
    for (const auto& weak : state.groups) {
      if (const auto shared = weak.lock()) {
        shared->wedge();
      }
    }
  }
  while (true) {
    pause();
  }
}

} // namespace

void guard_gloo_thread(const std::shared_ptr<GlooShared>& shared) {
  Guard& state = guard();
  const std::lock_guard lock(state.mutex);
  if (state.previous == nullptr) {
    state.previous = std::set_terminate(on_terminate);
  }
  std::erase_if(state.groups, [](const auto& weak) { return weak.expired(); });
  state.groups.push_back(shared);
}

} // namespace trireme::comm
