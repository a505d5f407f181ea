#pragma once

#include <trireme/parallel/pipeline/schedule.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::pipeline {

/// One computation of one stage.
struct TimelineSpan {
  int stage = 0;
  Op op = Op::forward; ///< forward, backward, backward_input or backward_weight
  int micro_batch = 0;
  int chunk = 0;
  double begin = 0;
  double end = 0;
};

/// The computations of all stages in one step.
struct Timeline {
  ScheduleShape shape;
  std::vector<TimelineSpan> spans; ///< by stage, then by begin; the first of all begins at 0
  std::string unit;                ///< "units" of a whole forward, or "ms" when measured
  double total = 0;                ///< from the first begin to the last end
  double bubble = 0;               ///< share of stages * total in which a stage computes nothing, 0 to 1
  /// Largest number of micro-batches in flight on each stage: forwards whose backward (to the last weight gradient) is
  /// not over, each counting 1/chunks. An evaluation keeps nothing, so it is one there.
  std::vector<double> peak_in_flight;
};

/// Durations of one part of the model for one micro-batch.
struct PartCosts {
  double forward = 1;
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
  /// From the end of a computation to the arrival of its result at the next part, and at the previous one.
  double send_activation = 0;
  double send_grad = 0;

  bool operator==(const PartCosts&) const = default;
};

/// Durations of computations. A stage's forward takes `forward`, so one of its chunks takes 1/chunks of that.
struct Costs {
  double forward = 1;
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
  double transfer = 0; ///< from the end of a computation to the arrival of its result; overlaps computation
  /// Costs of every part by its virtual stage, instead of all numbers above; empty: parts are equal.
  std::vector<PartCosts> parts = {};
};

/// Simulates the programs: results are sent when they are made, receives wait, everything else takes no time.
/// Time: proportional to the number of instructions. Errors: InputError for a deadlock, which check_schedule()
/// explains.
Timeline simulate(const std::vector<Program>& programs, const ScheduleShape& shape, const Costs& costs = {});

/// Reads a run's timeline from its trace (monitor/chrome_trace.h): the last step that all stages
/// completed. Uses spans named "F m c", "B m c", "I m c" (input gradient) and "W m c" (weight gradient) with
/// micro-batch m and chunk c. A span named "stage S of P" gives the stage of a rank; without one,
/// stages are the ranks in order. With several pipelines, reads the one with the lowest ranks.
/// Errors: InputError naming the file and what it lacks.
Timeline from_trace(const std::filesystem::path& trace);

/// Sorts the spans, shifts them to begin at 0 and fills in total, bubble and peak_in_flight. The shape must be set.
void summarize(Timeline& timeline);

} // namespace trireme::pipeline
