#include "schedules.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>

namespace trireme::simulation {
namespace {

constexpr size_t kMostFailures = 10;

int64_t number_of(const char* variable, int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

} // namespace

std::vector<uint64_t> run_schedules(int64_t count, const std::function<void(Simulator&)>& schedule) {
  const int64_t only = number_of("TRIREME_SEED", 0);
  const int64_t first = only != 0 ? only : number_of("TRIREME_FIRST_SEED", 1);
  const int64_t last = only != 0 ? only : first + number_of("TRIREME_SIMULATIONS", count) - 1;
  std::vector<uint64_t> failed;
  const auto start = std::chrono::steady_clock::now();
  int64_t seed = first;
  for (; seed <= last && failed.size() < kMostFailures; ++seed) {
    Simulator simulator(static_cast<uint64_t>(seed));
    schedule(simulator);
    if (!simulator.violation().empty()) {
      failed.push_back(static_cast<uint64_t>(seed));
      ADD_FAILURE() << "seed " << seed << ": " << simulator.violation() << '\n'
                    << (failed.size() == 1 ? simulator.story() : std::string("(TRIREME_SEED tells its story)"));
    } else if (only != 0) {
      std::cout << simulator.story();
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double done = static_cast<double>(only != 0 ? 1 : seed - first);
  std::cout << done << " schedules, " << failed.size() << " failed, " << static_cast<int64_t>(done * 60 / seconds)
            << " a minute\n";
  return failed;
}

std::string first_violation(int64_t most, const std::function<void(Simulator&)>& schedule) {
  for (int64_t seed = 1; seed <= most; ++seed) {
    Simulator simulator(static_cast<uint64_t>(seed));
    schedule(simulator);
    if (!simulator.violation().empty()) {
      std::cout << "seed " << seed << ": " << simulator.violation() << '\n';
      return simulator.violation();
    }
  }
  return "";
}

} // namespace trireme::simulation
