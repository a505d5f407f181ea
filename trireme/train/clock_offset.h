#pragma once

#include <trireme/comm/group.h>
#include <trireme/monitor/chrome_trace.h>

#include <vector>

namespace trireme::train {

/// Samples of rank 0's clock, which each rank takes in turn, several times; empty on rank 0. Collective.
std::vector<monitor::ClockSample> ask_clock_of_rank_0(const comm::Group& group);

} // namespace trireme::train
