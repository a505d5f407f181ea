#pragma once

#include <trireme/parallel/pipeline/instruction.h>

#include <functional>
#include <string>
#include <vector>

namespace trireme::pipeline {

/// The size of a pipeline. Each stage holds `chunks` parts of the model; in the order of the
/// model, part (stage, chunk) is virtual stage chunk * stages + stage, and activations flow from
/// virtual stage v to v + 1. With one stage nothing is sent.
struct ScheduleShape {
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;

  int virtual_stages() const { return stages * chunks; }
  int virtual_stage(int stage, int chunk) const { return chunk * stages + stage; }
  bool operator==(const ScheduleShape&) const = default;
};

/// The built-in schedules, for p stages, m micro-batches and v chunks; docs/schedules.md
/// draws them. Bubble: the share of time in which a stage is idle when a backward takes two forwards.
///
/// naive         one micro-batch at a time through all stages and back. Bubble 1 - 1/p, 1 in flight.
/// gpipe         all forwards, then all backwards, both in order of the micro-batches (so that gradients add up
///               in the same order as everywhere). Bubble (p-1)/(m+p-1), m in flight. Huang et al. 2019,
///               arXiv:1811.06965.
/// one_f_one_b   the same bubble with min(p - stage, m) in flight; instruction for instruction DeepSpeed's
///               TrainSchedule. One chunk. Narayanan et al. 2020 (PipeDream-Flush), arXiv:2006.09503.
/// interleaved   v chunks a stage: bubble (p-1)/(v m+p-1) where p divides m, more messages and more in flight.
///               Other m run as the next multiple with the surplus left out. Narayanan et al. 2021, arXiv:2104.04473.
/// zero_bubble   ZB-H1: weight gradients wait until there is nothing better to do; bubble (p-1)/(3m+p-1) for m >= p, at
///               most min(p, m) in flight on every stage. One chunk. Qi et al. 2023, arXiv:2401.10241.
/// forward_only  evaluation; with one chunk DeepSpeed's InferenceSchedule.
enum class ScheduleKind { naive, gpipe, one_f_one_b, interleaved, zero_bubble, forward_only };

/// Reads "naive", "gpipe", "1f1b", "interleaved", "zero-bubble" or "forward-only".
/// Errors: InputError with the nearest word.
ScheduleKind parse_schedule(const std::string& name);
const char* schedule_name(ScheduleKind kind);

/// Makes the program of one stage. Pure; takes microseconds (zero_bubble: a few per micro-batch and stage). Errors:
/// InputError for numbers below 1, a stage that does not exist, more than 4096 stages or chunks, more than a million
/// forwards, or chunks in a schedule that has one.
Program make_program(ScheduleKind kind, const ScheduleShape& shape, int stage);

/// Makes the programs of all stages.
std::vector<Program> make_programs(ScheduleKind kind, const ScheduleShape& shape);

/// A custom schedule: returns the program of `stage`. Pass its programs to check_schedule() first.
using ScheduleFunction = std::function<Program(const ScheduleShape& shape, int stage)>;

/// Counts the buffers that `program` uses in `chunk`.
int num_buffers(const Program& program, int chunk);

/// Micro-batches of each chunk whose forward is done and whose backward is not, at the peak (over all chunks) of a
/// stage that runs `program`.
std::vector<int64_t> most_in_flight(const Program& program, int chunks);

/// Assigns every micro-batch the lowest buffer of its chunk that is free from its first instruction to its last.
/// Overwrites `buffer`.
void assign_buffers(Program& program);

/// Most forwards of all stages per step.
inline constexpr int kMostForwards = 1'000'000;
/// Throws InputError when a number is below 1 or their product is too large.
void check_shape(const ScheduleShape& shape);

} // namespace trireme::pipeline
