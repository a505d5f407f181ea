#include <trireme/launch/attempt.h>

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace trireme::launch {
namespace {

using std::chrono::duration;

constexpr std::chrono::milliseconds kLookForSteps{50};

void poll_until(Clock::time_point wake, const Job& job, const std::vector<Attempt*>& attempts,
                std::vector<pollfd>& polled) {
  polled.push_back({job.signals.fd(), POLLIN, 0});
  for (Outlet* outlet : {&job.screen.out(), &job.screen.err()}) {
    if (outlet->pending()) {
      polled.push_back({outlet->fd(), POLLOUT, 0});
    }
  }
  for (const Attempt* attempt : attempts) {
    attempt->add_to(polled);
  }
  int timeout = -1;
  if (wake != Clock::time_point::max()) {
    timeout =
        static_cast<int>(std::clamp(std::ceil(duration<double, std::milli>(wake - Clock::now()).count()), 0.0, 1e9));
  }
  ::poll(polled.data(), polled.size(), timeout);
}

} // namespace

void wait_for_events(const Job& job, const std::vector<Attempt*>& attempts) {
  auto wake = job.account.waiting() ? Clock::now() + kLookForSteps : Clock::time_point::max();
  for (const Attempt* attempt : attempts) {
    wake = std::min(wake, attempt->wake().value_or(wake));
  }
  std::vector<pollfd> polled;
  constexpr int kNone = 0;
  int number = kNone;
  if (job.wait) {
    number = job.wait(wake).value_or(kNone);
  } else {
    poll_until(wake, job, attempts, polled);
  }
  for (Attempt* attempt : attempts) {
    attempt->serve(polled);
  }
  job.screen.out().flush();
  job.screen.err().flush();
  for (number = number != kNone ? number : job.signals.next().value_or(kNone); number != kNone;
       number = job.signals.next().value_or(kNone)) {
    job.on_signal ? job.on_signal(number) : attempts.front()->take_signal(number);
  }
}

} // namespace trireme::launch
