#pragma once

#include <trireme/parallel/pipeline/schedule.h>
#include <trireme/plan/estimate/run.h>

#include <vector>

namespace trireme::plan {

/// The computations of a stage by its program, without messages; repetitions are stored once.
std::vector<estimate::Run::Phase> phases_of(const pipeline::Program& program);

/// Returns estimate::Run::programs of a step. For many micro-batches, two steps with fewer: once a pipeline is full,
/// every schedule repeats itself after as many micro-batches as there are stages.
std::vector<estimate::Run::Programs> programs_of(pipeline::ScheduleKind kind, const pipeline::ScheduleShape& shape);

/// A step with fewer micro-batches in which each stage keeps as many of them as in a step of `shape`.
pipeline::ScheduleShape fewer_micro_batches(pipeline::ScheduleKind kind, const pipeline::ScheduleShape& shape);

} // namespace trireme::plan
