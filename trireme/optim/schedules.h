#pragma once

#include <trireme/optim/schedule.h>

// Each makes one kind of schedule, for make_schedule().

namespace trireme::optim {

std::unique_ptr<Schedule> make_warmup(const ScheduleOptions& options, double optimizer_lr);
std::unique_ptr<Schedule> make_lr_range_test(const ScheduleOptions& options);
std::unique_ptr<Schedule> make_one_cycle(const ScheduleOptions& options);

} // namespace trireme::optim
