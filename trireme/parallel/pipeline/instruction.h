#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::pipeline {

/// Operations of a stage. `backward` computes the gradients of inputs and weights; a zero-bubble schedule splits it
/// into `backward_input` and a later `backward_weight`.
enum class Op : uint8_t {
  load_micro_batch, ///< inputs on the first virtual stage, targets on the last
  forward,
  backward,
  backward_input,
  backward_weight,
  send_activation,   ///< to the next virtual stage; may leave as soon as it exists, at the latest here
  recv_activation,   ///< waits
  send_grad,         ///< to the previous virtual stage; as send_activation
  recv_grad,         ///< waits
  reduce_tied_grads, ///< sums the gradients of tied layers over the stages that hold them
  reduce_grads,      ///< averages over the data-parallel replicas
  optimizer_step,
};
inline constexpr int kNumOps = 12;

/// Whether it runs layers: a forward, or a backward or a part of one.
constexpr bool computes(Op op) {
  return op == Op::forward || op == Op::backward || op == Op::backward_input || op == Op::backward_weight;
}

/// One instruction. The last three operations have no micro-batch and no buffer.
struct Instruction {
  Op op = Op::forward;
  int micro_batch = -1;
  int chunk = 0;   ///< which of the parts of the model that this stage holds
  int buffer = -1; ///< place for the micro-batch's tensors in this chunk: one of [0, num_buffers())

  bool operator==(const Instruction&) const = default;
};

/// The instructions of one stage in one step of training, in order.
using Program = std::vector<Instruction>;

/// "forward", "send_grad", ...
const char* op_name(Op op);

/// False for the three operations that end a step.
bool has_micro_batch(Op op);

/// "forward of micro-batch 3, chunk 0"
std::string describe(const Instruction& instruction);

} // namespace trireme::pipeline
