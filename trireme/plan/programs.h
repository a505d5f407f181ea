#pragma once

#include <trireme/parallel/pipeline/schedule.h>
#include <trireme/plan/estimate/run.h>

#include <vector>

namespace trireme::plan {

/// What a stage computes, by its program: messages are left out, and what is repeated is said once.
std::vector<estimate::Run::Phase> phases_of(const pipeline::Program& program);

/// estimate::Run::programs of a step. Of many micro-batches it gives two steps with fewer: whatever the schedule, once
/// the pipeline is full it repeats itself after as many micro-batches as there are stages.
std::vector<estimate::Run::Programs> programs_of(pipeline::ScheduleKind kind, const pipeline::ScheduleShape& shape);

/// A step with so few micro-batches that its stages keep as many of them as in a step of `shape`.
pipeline::ScheduleShape fewer_micro_batches(pipeline::ScheduleKind kind, const pipeline::ScheduleShape& shape);

} // namespace trireme::plan
