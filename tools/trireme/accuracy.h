#pragma once

#include "task.h"

#include <trireme/comm/group.h>
#include <trireme/data/loader.h>

#include <c10/core/Device.h>

#include <cstdint>

namespace trireme::tools {

/// The share of the samples of `loader` whose class `task` finds, over all ranks of `ranks`; at most `max_batches` of each rank (0: all). Collective.
double accuracy(const Task& task, data::DataLoader& loader, int64_t max_batches, at::Device device, const comm::Group& ranks);

} // namespace trireme::tools
