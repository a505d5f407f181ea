#include <trireme/parallel/pipeline/program_writer.h>

namespace trireme::pipeline {

bool ProgramWriter::has_previous(int chunk) const {
  return shape_.stages > 1 && shape_.virtual_stage(stage_, chunk) > 0;
}

bool ProgramWriter::has_next(int chunk) const {
  return shape_.stages > 1 && shape_.virtual_stage(stage_, chunk) < shape_.virtual_stages() - 1;
}

void ProgramWriter::load(int micro_batch, int chunk) {
  const int v = shape_.virtual_stage(stage_, chunk);
  if (v == 0 || v == shape_.virtual_stages() - 1) {
    compute(Op::load_micro_batch, micro_batch, chunk);
  }
}

void ProgramWriter::recv_activation(int micro_batch, int chunk) {
  if (has_previous(chunk)) {
    compute(Op::recv_activation, micro_batch, chunk);
  }
}

void ProgramWriter::send_activation(int micro_batch, int chunk) {
  if (has_next(chunk)) {
    compute(Op::send_activation, micro_batch, chunk);
  }
}

void ProgramWriter::recv_grad(int micro_batch, int chunk) {
  if (has_next(chunk)) {
    compute(Op::recv_grad, micro_batch, chunk);
  }
}

void ProgramWriter::send_grad(int micro_batch, int chunk) {
  if (has_previous(chunk)) {
    compute(Op::send_grad, micro_batch, chunk);
  }
}

void ProgramWriter::compute(Op op, int micro_batch, int chunk) {
  program_.push_back({op, micro_batch, chunk, -1});
}

void ProgramWriter::whole_forward(int micro_batch, int chunk) {
  recv_activation(micro_batch, chunk);
  load(micro_batch, chunk);
  compute(Op::forward, micro_batch, chunk);
  send_activation(micro_batch, chunk);
}

void ProgramWriter::whole_backward(int micro_batch, int chunk, Op op) {
  recv_grad(micro_batch, chunk);
  compute(op, micro_batch, chunk);
  send_grad(micro_batch, chunk);
}

void ProgramWriter::end_step() {
  for (const Op op : {Op::reduce_tied_grads, Op::reduce_grads, Op::optimizer_step}) {
    program_.push_back({op});
  }
}

Program ProgramWriter::finish() {
  assign_buffers(program_);
  return std::move(program_);
}

Program ProgramWriter::finish_cyclic(int buffers) {
  for (Instruction& instruction : program_) {
    if (has_micro_batch(instruction.op)) {
      instruction.buffer = instruction.micro_batch % buffers;
    }
  }
  return std::move(program_);
}

} // namespace trireme::pipeline
