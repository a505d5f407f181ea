#include <trireme/parallel/pipeline/schedule_check.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <array>

namespace trireme::pipeline {
namespace {

constexpr int kAbsent = -1;
constexpr int kMostListed = 8; // stages in the message about a deadlock
constexpr Op kEnds[] = {Op::reduce_tied_grads, Op::reduce_grads, Op::optimizer_step};

bool is_backward(Op op) {
  return op == Op::backward || op == Op::backward_input || op == Op::backward_weight || op == Op::send_grad ||
         op == Op::recv_grad;
}

// One stage's program, with the index of each operation.
class StageCheck {
 public:
  StageCheck(const Program& program, const ScheduleShape& shape, int stage, bool training)
      : program_(program),
        shape_(shape),
        stage_(stage),
        training_(training),
        places_(size_t(shape.chunks) * shape.micro_batches),
        orders_(shape.chunks) {
    for (auto& place : places_) {
      place.fill(kAbsent);
    }
    ends_.fill(kAbsent);
  }

  // Runs the checks that need no other stage.
  void check() {
    for (int i = 0; i < size(); ++i) {
      read(i);
    }
    for (int i = 0; i < size(); ++i) {
      if (has_micro_batch(program_[i].op)) {
        check_needs(i);
      }
    }
    check_nothing_missing();
    check_ends();
    check_send_order(Op::send_activation, Op::forward);
    check_send_order(Op::send_grad, Op::backward);
    check_buffers();
  }

  int size() const { return static_cast<int>(program_.size()); }
  const Instruction& at(int i) const { return program_[i]; }
  // Index of the instruction that does `op`; `backward` also finds backward_input.
  int place(Op op, int micro_batch, int chunk) const {
    const auto& places = places_[size_t(chunk) * shape_.micro_batches + micro_batch];
    const int whole = places[static_cast<int>(op)];
    return whole == kAbsent && op == Op::backward ? places[static_cast<int>(Op::backward_input)] : whole;
  }
  int place_of_end(Op op) const { return ends_[static_cast<int>(op) - static_cast<int>(Op::reduce_tied_grads)]; }
  // Micro-batches in the order of `op`; `backward` also finds backward_input.
  const std::vector<int>& order(Op op, int chunk) const { return orders_[chunk][static_cast<int>(op)]; }
  [[noreturn]] void fail(int i, const std::string& why) const {
    throw InputError("schedule",
                     concat("stage ", stage_, ", instruction ", i, " (", describe(program_[i]), "): ", why));
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw InputError("schedule", concat("stage ", stage_, ": ", why));
  }

 private:
  int virtual_stage(int chunk) const { return shape_.virtual_stage(stage_, chunk); }
  bool is_first(int chunk) const { return virtual_stage(chunk) == 0; }
  bool is_last(int chunk) const { return virtual_stage(chunk) == shape_.virtual_stages() - 1; }
  bool gets_activation(int chunk) const { return shape_.stages > 1 && !is_first(chunk); }
  bool gets_grad(int chunk) const { return shape_.stages > 1 && !is_last(chunk); }

  void read(int i) {
    const Instruction& instruction = program_[i];
    if (static_cast<int>(instruction.op) >= kNumOps) {
      throw InputError("schedule", concat("stage ", stage_, ", instruction ", i, ": there is no operation number ",
                                          static_cast<int>(instruction.op)));
    }
    if (!training_ && (is_backward(instruction.op) || !has_micro_batch(instruction.op))) {
      fail(i, "an evaluation has only loads, forwards and activations");
    }
    int* place = nullptr;
    if (has_micro_batch(instruction.op)) {
      check_range(i, "micro-batch", instruction.micro_batch, shape_.micro_batches);
      check_range(i, "chunk", instruction.chunk, shape_.chunks);
      check_range(i, "buffer", instruction.buffer, std::max(2, shape_.micro_batches));
      check_belongs(i);
      place = &places_[size_t(instruction.chunk) * shape_.micro_batches + instruction.micro_batch]
                      [static_cast<int>(instruction.op)];
    } else {
      place = &ends_[static_cast<int>(instruction.op) - static_cast<int>(Op::reduce_tied_grads)];
    }
    if (*place != kAbsent) {
      fail(i, concat("instruction ", *place, " did it already"));
    }
    *place = i;
    if (has_micro_batch(instruction.op)) {
      const Op listed = instruction.op == Op::backward_input ? Op::backward : instruction.op;
      orders_[instruction.chunk][static_cast<int>(listed)].push_back(instruction.micro_batch);
    }
    if (instruction.op == Op::backward || instruction.op == Op::backward_input) {
      const Op other = instruction.op == Op::backward ? Op::backward_input : Op::backward;
      const int done =
          places_[size_t(instruction.chunk) * shape_.micro_batches + instruction.micro_batch][static_cast<int>(other)];
      if (done != kAbsent) {
        fail(i, concat("instruction ", done, " (", op_name(other), ") did it already"));
      }
    }
  }

  void check_range(int i, const char* what, int value, int end) const {
    if (value < 0 || value >= end) {
      fail(i, concat("there is no ", what, ' ', value, "; they go from 0 to ", end - 1));
    }
  }

  // Checks that there is something to load, send or receive.
  void check_belongs(int i) const {
    const auto [op, micro_batch, chunk, buffer] = program_[i];
    if (op == Op::load_micro_batch && !is_first(chunk) && !is_last(chunk)) {
      fail(i, "only the first part of the model needs inputs and only the last needs targets");
    }
    const bool before = op == Op::recv_activation || op == Op::send_grad;
    const bool after = op == Op::send_activation || op == Op::recv_grad;
    if (before && is_first(chunk)) {
      fail(i, "this is the first part of the model, nothing comes before it");
    }
    if (after && is_last(chunk)) {
      fail(i, "this is the last part of the model, nothing comes after it");
    }
    if ((before || after) && shape_.stages == 1) {
      fail(i, "a single stage needs no messages between its chunks");
    }
  }

  void need(int i, Op op, int chunk) const {
    const int where = place(op, program_[i].micro_batch, chunk);
    const std::string what = describe({op, program_[i].micro_batch, chunk});
    if (where == kAbsent) {
      fail(i, concat("it needs ", what, ", which is nowhere in the program"));
    }
    if (where > i) {
      fail(i, concat("it needs ", what, ", which comes later (instruction ", where, ')'));
    }
  }

  void check_needs(int i) const {
    const auto [op, micro_batch, chunk, buffer] = program_[i];
    switch (op) {
      case Op::forward:
        if (gets_activation(chunk)) {
          need(i, Op::recv_activation, chunk);
        } else if (!is_first(chunk)) {
          need(i, Op::forward, chunk - 1);
        }
        if (is_first(chunk) || is_last(chunk)) {
          need(i, Op::load_micro_batch, chunk);
        }
        break;
      case Op::backward:
      case Op::backward_input:
        need(i, Op::forward, chunk);
        if (gets_grad(chunk)) {
          need(i, Op::recv_grad, chunk);
        } else if (!is_last(chunk)) {
          need(i, Op::backward, chunk + 1);
        }
        break;
      case Op::backward_weight:
        need(i, Op::backward_input, chunk);
        break;
      case Op::send_activation:
      case Op::recv_grad:
        need(i, Op::forward, chunk);
        break;
      case Op::send_grad:
        need(i, Op::backward, chunk);
        break;
      default:
        break;
    }
  }

  void check_nothing_missing() const {
    for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
      for (int m = 0; m < shape_.micro_batches; ++m) {
        const auto require = [&](Op op, bool needed) {
          if (needed && place(op, m, chunk) == kAbsent) {
            fail(concat("there is no ", describe({op, m, chunk}), " in its ", size(), " instructions"));
          }
        };
        require(Op::forward, true);
        require(Op::send_activation, gets_grad(chunk)); // the sender gets a gradient back
        require(Op::backward, training_);
        require(Op::backward_weight, place(Op::backward_input, m, chunk) != kAbsent);
        require(Op::send_grad, training_ && gets_activation(chunk));
      }
    }
  }

  void check_ends() const {
    if (!training_) {
      return;
    }
    int before = kAbsent;
    for (const Op op : kEnds) {
      const int where = place_of_end(op);
      if (where == kAbsent) {
        fail(concat("there is no ", op_name(op), " in its ", size(), " instructions"));
      }
      if (where < before) {
        fail(where, concat("it comes before instruction ", before, " (", describe(program_[before]), ')'));
      }
      before = where;
    }
    for (int i = place_of_end(kEnds[0]); i < size(); ++i) {
      const Op op = program_[i].op;
      if (op == Op::backward || op == Op::backward_input || op == Op::backward_weight) {
        fail(i, concat("the gradients were reduced before (instruction ", place_of_end(kEnds[0]), ')'));
      }
    }
  }

  // A message may be sent as soon as it is made, so the order of making is the order of sending.
  void check_send_order(Op send, Op make) const {
    for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
      const std::vector<int>& sent = order(send, chunk);
      const std::vector<int>& made = order(make, chunk);
      for (size_t k = 0; k < sent.size(); ++k) {
        if (sent[k] != made[k]) {
          fail(place(send, sent[k], chunk),
               concat("micro-batch ", made[k], " was made before it (instruction ", place(make, made[k], chunk),
                      "), and messages are sent in the order in which they are made"));
        }
      }
    }
  }

  void check_buffers() const {
    std::vector<int> last(places_.size(), kAbsent);
    const auto item = [&](const Instruction& instruction) {
      return size_t(instruction.chunk) * shape_.micro_batches + instruction.micro_batch;
    };
    for (int i = 0; i < size(); ++i) {
      if (has_micro_batch(program_[i].op)) {
        last[item(program_[i])] = i;
      }
    }
    const int buffers = std::max(2, shape_.micro_batches);
    std::vector<int> holder(size_t(shape_.chunks) * buffers, kAbsent); // micro-batch in each buffer
    std::vector<int> buffer_of(places_.size(), kAbsent);
    for (int i = 0; i < size(); ++i) {
      const Instruction& instruction = program_[i];
      if (!has_micro_batch(instruction.op)) {
        continue;
      }
      int& mine = buffer_of[item(instruction)];
      int& held = holder[size_t(instruction.chunk) * buffers + instruction.buffer];
      if (mine == kAbsent) {
        if (held != kAbsent) {
          fail(i, concat("micro-batch ", held, " is still in buffer ", instruction.buffer,
                         " of this chunk, until instruction ",
                         last[size_t(instruction.chunk) * shape_.micro_batches + held]));
        }
        mine = instruction.buffer;
        held = instruction.micro_batch;
      } else if (mine != instruction.buffer) {
        fail(i, concat("it names buffer ", instruction.buffer, ", and this micro-batch is in buffer ", mine));
      }
      if (last[item(instruction)] == i) {
        held = kAbsent;
      }
    }
  }

  const Program& program_;
  ScheduleShape shape_;
  int stage_;
  bool training_;
  std::vector<std::array<int, kNumOps>> places_;              // by chunk and micro-batch
  std::vector<std::array<std::vector<int>, kNumOps>> orders_; // by chunk
  std::array<int, 3> ends_;
};

// The checks that compare all stages.
class TogetherCheck {
 public:
  TogetherCheck(const std::vector<StageCheck>& stages, const ScheduleShape& shape)
      : stages_(stages), shape_(shape), next_(stages.size(), 0) {}

  void check_channels() const {
    for (int v = 1; v < shape_.virtual_stages() && shape_.stages > 1; ++v) {
      check_channel(Op::send_activation, v - 1, Op::recv_activation, v);
      check_channel(Op::send_grad, v, Op::recv_grad, v - 1);
    }
  }

  void check_progress() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t s = 0; s < stages_.size(); ++s) {
        while (next_[s] < stages_[s].size() && blocked_by(static_cast<int>(s)) == kAbsent) {
          ++next_[s];
          moved = true;
        }
      }
    }
    std::string waiting;
    int waiting_stages = 0;
    for (size_t s = 0; s < stages_.size(); ++s) {
      if (next_[s] < stages_[s].size() && ++waiting_stages <= kMostListed) {
        const int whom = blocked_by(static_cast<int>(s));
        waiting += concat(waiting.empty() ? "" : "; ", "stage ", s, ", instruction ", next_[s], " (",
                          describe(stages_[s].at(next_[s])), ") waits for stage ", whom);
      }
    }
    if (waiting_stages > kMostListed) {
      waiting += concat("; and ", waiting_stages - kMostListed, " more");
    }
    if (!waiting.empty()) {
      throw InputError("schedule", "deadlock: " + waiting);
    }
  }

 private:
  const StageCheck& holder(int v) const { return stages_[v % shape_.stages]; }
  int chunk_of(int v) const { return v / shape_.stages; }

  void check_channel(Op send, int from, Op recv, int to) const {
    const std::vector<int>& sent = holder(from).order(send, chunk_of(from));
    const std::vector<int>& received = holder(to).order(recv, chunk_of(to));
    for (size_t k = 0; k < received.size() && k < sent.size(); ++k) {
      if (received[k] != sent[k]) {
        holder(to).fail(holder(to).place(recv, received[k], chunk_of(to)),
                        concat("stage ", from % shape_.stages, " sends micro-batch ", sent[k], " first (instruction ",
                               holder(from).place(send, sent[k], chunk_of(from)), ')'));
      }
    }
    if (received.size() != sent.size()) {
      holder(to).fail(concat(received.size(), ' ', op_name(recv), " in chunk ", chunk_of(to), " for ", sent.size(), ' ',
                             op_name(send), " of stage ", from % shape_.stages));
    }
  }

  // The stage that the next instruction of stage s waits for.
  int blocked_by(int s) const {
    const auto [op, micro_batch, chunk, buffer] = stages_[s].at(next_[s]);
    if (op == Op::recv_activation || op == Op::recv_grad) {
      const int from = shape_.virtual_stage(s, chunk) + (op == Op::recv_activation ? -1 : 1);
      const Op send = op == Op::recv_activation ? Op::send_activation : Op::send_grad;
      const int sender = from % shape_.stages;
      return next_[sender] > holder(from).place(send, micro_batch, chunk_of(from)) ? kAbsent : sender;
    }
    if (op == Op::reduce_tied_grads || op == Op::optimizer_step) {
      for (size_t other = 0; other < stages_.size(); ++other) {
        if (next_[other] < stages_[other].place_of_end(op)) {
          return static_cast<int>(other);
        }
      }
    }
    return kAbsent;
  }

  const std::vector<StageCheck>& stages_;
  ScheduleShape shape_;
  std::vector<int> next_; // instruction of each stage
};

} // namespace

void check_schedule(const std::vector<Program>& programs, const ScheduleShape& shape, bool training) {
  check_shape(shape);
  if (programs.size() != static_cast<size_t>(shape.stages)) {
    throw InputError("schedule", concat("there are ", programs.size(), " programs for ", shape.stages, " stages"),
                     "Every stage needs one.");
  }
  std::vector<StageCheck> stages;
  for (int s = 0; s < shape.stages; ++s) {
    stages.emplace_back(programs[s], shape, s, training);
    stages.back().check();
  }
  TogetherCheck together(stages, shape);
  together.check_channels();
  together.check_progress();
}

} // namespace trireme::pipeline
