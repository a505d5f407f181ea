#pragma once

#include <trireme/parallel/pipeline/schedule.h>

namespace trireme::pipeline {

/// Writes one stage's program. Leaves out instructions that the stage does not need: messages past the ends of
/// the model, loads in its middle.
class ProgramWriter {
 public:
  ProgramWriter(const ScheduleShape& shape, int stage) : shape_(shape), stage_(stage) {}

  void load(int micro_batch, int chunk = 0);
  void recv_activation(int micro_batch, int chunk = 0);
  void send_activation(int micro_batch, int chunk = 0);
  void recv_grad(int micro_batch, int chunk = 0);
  void send_grad(int micro_batch, int chunk = 0);
  void compute(Op op, int micro_batch, int chunk = 0);

  /// Receive, load, compute, send.
  void whole_forward(int micro_batch, int chunk = 0);
  /// Receive, compute, send; `op` is backward or backward_input.
  void whole_backward(int micro_batch, int chunk = 0, Op op = Op::backward);

  /// Ends a step of training.
  void end_step();

  /// Returns the program, with the fewest buffers.
  Program finish();
  /// Returns the program, with micro-batch i in buffer i modulo `buffers`.
  Program finish_cyclic(int buffers);

 private:
  bool has_previous(int chunk) const;
  bool has_next(int chunk) const;

  ScheduleShape shape_;
  int stage_;
  Program program_;
};

// The schedules, each for one stage of a shape that was checked.
Program naive(const ScheduleShape& shape, int stage);
Program gpipe(const ScheduleShape& shape, int stage);
Program one_f_one_b(const ScheduleShape& shape, int stage);
Program interleaved(const ScheduleShape& shape, int stage);
Program forward_only(const ScheduleShape& shape, int stage);
/// All stages at once, because one simulation orders them.
std::vector<Program> zero_bubble(const ScheduleShape& shape);

} // namespace trireme::pipeline
