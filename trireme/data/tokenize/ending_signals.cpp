#include <trireme/data/tokenize/ending_signals.h>

#include <atomic>

namespace trireme::data {
namespace {

std::atomic<int> asked_by{0};
static_assert(std::atomic<int>::is_always_lock_free);

} // namespace

EndingSignals::EndingSignals(std::initializer_list<int> numbers) {
  asked_by = 0;
  struct sigaction action{};
  action.sa_handler = [](int number) { asked_by = number; };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  for (const int number : numbers) {
    struct sigaction before{};
    ::sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) {
      ::sigaction(number, &action, nullptr);
      before_.emplace_back(number, before);
    }
  }
}

EndingSignals::~EndingSignals() {
  for (const auto& [number, before] : before_) {
    ::sigaction(number, &before, nullptr);
  }
}

int EndingSignals::asked() {
  return asked_by;
}

} // namespace trireme::data
