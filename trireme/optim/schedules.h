#pragma once

#include <trireme/optim/schedule.h>

// The makers behind make_schedule(), one file each.

namespace trireme::optim {

std::unique_ptr<Schedule> make_warmup(const ScheduleOptions& options, double optimizer_lr);
std::unique_ptr<Schedule> make_lr_range_test(const ScheduleOptions& options);
std::unique_ptr<Schedule> make_one_cycle(const ScheduleOptions& options);

} // namespace trireme::optim
