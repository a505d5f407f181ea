#pragma once

#include <tests/simulation/simulator.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme::simulation {

/// Runs `schedule` with the seeds from 1 to `count`, each with a Simulator of its own, and reports as a failed test the
/// seeds that violate something: what, and the story. A schedule calls run() itself, and violate() for what it sees
/// afterwards. Returns the seeds that failed, at most ten: then it stops.
///   TRIREME_SIMULATIONS=N   so many seeds instead (100000 takes minutes)
///   TRIREME_FIRST_SEED=N    from this one on, for other schedules than those of the day before
///   TRIREME_SEED=N          this one alone, with its story
std::vector<uint64_t> run_schedules(int64_t count, const std::function<void(Simulator&)>& schedule);

/// The first violation with the seeds from 1 to `most`, "" where there is none: for rules that are known to be wrong.
std::string first_violation(int64_t most, const std::function<void(Simulator&)>& schedule);

} // namespace trireme::simulation
