#include <trireme/parallel/pipeline/schedule.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/parallel/pipeline/program_writer.h>

#include <algorithm>
#include <map>
#include <set>

namespace trireme::pipeline {
namespace {

constexpr const char* kOpNames[kNumOps] = {
    "load_micro_batch", "forward",   "backward",  "backward_input",    "backward_weight", "send_activation",
    "recv_activation",  "send_grad", "recv_grad", "reduce_tied_grads", "reduce_grads",    "optimizer_step"};
constexpr const char* kKindNames[] = {"naive", "gpipe", "1f1b", "interleaved", "zero-bubble", "forward-only"};
constexpr int kMostStages = 4096;

void check_kind(ScheduleKind kind, const ScheduleShape& shape) {
  check_shape(shape);
  if (shape.chunks > 1 && (kind == ScheduleKind::one_f_one_b || kind == ScheduleKind::zero_bubble)) {
    throw InputError("schedule",
                     concat(schedule_name(kind), " has one part of the model per stage, not ", shape.chunks, " chunks"),
                     "Use interleaved, or remove chunks.");
  }
}

} // namespace

const char* op_name(Op op) {
  return kOpNames[static_cast<int>(op)];
}

bool has_micro_batch(Op op) {
  return op < Op::reduce_tied_grads;
}

std::string describe(const Instruction& instruction) {
  if (!has_micro_batch(instruction.op)) {
    return op_name(instruction.op);
  }
  return concat(op_name(instruction.op), " of micro-batch ", instruction.micro_batch, ", chunk ", instruction.chunk);
}

ScheduleKind parse_schedule(const std::string& name) {
  const auto* found = std::find(std::begin(kKindNames), std::end(kKindNames), name);
  if (found == std::end(kKindNames)) {
    throw InputError("schedule", concat("there is no schedule \"", name, "\""),
                     did_you_mean(name, {std::begin(kKindNames), std::end(kKindNames)}));
  }
  return static_cast<ScheduleKind>(found - std::begin(kKindNames));
}

const char* schedule_name(ScheduleKind kind) {
  return kKindNames[static_cast<int>(kind)];
}

void check_shape(const ScheduleShape& shape) {
  const std::pair<const char*, int> numbers[] = {
      {"stages", shape.stages}, {"micro-batches", shape.micro_batches}, {"chunks", shape.chunks}};
  for (const auto& [name, number] : numbers) {
    if (number < 1) {
      throw InputError("schedule", concat("the number of ", name, " is ", number), "It must be at least 1.");
    }
  }
  if (shape.stages > kMostStages || shape.chunks > kMostStages) {
    throw InputError(
        "schedule", concat(shape.stages, " stages with ", shape.chunks, " chunks: more than ", kMostStages, " of one"));
  }
  if (static_cast<double>(shape.stages) * shape.chunks * shape.micro_batches > kMostForwards) {
    throw InputError("schedule",
                     concat(shape.stages, " stages with ", shape.chunks, " chunks and ", shape.micro_batches,
                            " micro-batches are more than ", kMostForwards, " forwards in a step"),
                     "Use fewer micro-batches, each larger.");
  }
}

Program make_program(ScheduleKind kind, const ScheduleShape& shape, int stage) {
  check_kind(kind, shape);
  if (stage < 0 || stage >= shape.stages) {
    throw InputError("schedule", concat("there is no stage ", stage, " among ", shape.stages, " stages"),
                     "They count from 0.");
  }
  switch (kind) {
    case ScheduleKind::naive:
      return naive(shape, stage);
    case ScheduleKind::gpipe:
      return gpipe(shape, stage);
    case ScheduleKind::one_f_one_b:
      return one_f_one_b(shape, stage);
    case ScheduleKind::interleaved:
      return interleaved(shape, stage);
    case ScheduleKind::zero_bubble:
      return std::move(zero_bubble(shape)[stage]);
    case ScheduleKind::forward_only:
      break;
  }
  return forward_only(shape, stage);
}

std::vector<Program> make_programs(ScheduleKind kind, const ScheduleShape& shape) {
  check_kind(kind, shape);
  if (kind == ScheduleKind::zero_bubble) {
    return zero_bubble(shape);
  }
  std::vector<Program> programs;
  for (int stage = 0; stage < shape.stages; ++stage) {
    programs.push_back(make_program(kind, shape, stage));
  }
  return programs;
}

int num_buffers(const Program& program, int chunk) {
  int buffers = 0;
  for (const Instruction& instruction : program) {
    if (has_micro_batch(instruction.op) && instruction.chunk == chunk) {
      buffers = std::max(buffers, instruction.buffer + 1);
    }
  }
  return buffers;
}

std::vector<int64_t> most_in_flight(const Program& program, int chunks) {
  std::vector<int64_t> now(static_cast<size_t>(chunks), 0);
  std::vector<int64_t> most = now;
  int64_t count = 0;
  int64_t largest = 0;
  for (const Instruction& instruction : program) {
    const bool ends = instruction.op == Op::backward || instruction.op == Op::backward_weight;
    const int change = instruction.op == Op::forward ? 1 : ends ? -1 : 0;
    now[static_cast<size_t>(instruction.chunk)] += change;
    count += change;
    if (count > largest) {
      largest = count;
      most = now;
    }
  }
  return most;
}

void assign_buffers(Program& program) {
  using Key = std::pair<int, int>; // chunk, micro-batch
  std::map<Key, size_t> last;
  for (size_t i = 0; i < program.size(); ++i) {
    last[{program[i].chunk, program[i].micro_batch}] = i;
  }
  std::map<Key, int> held;
  std::map<int, std::set<int>> free; // by chunk
  std::map<int, int> used;
  for (size_t i = 0; i < program.size(); ++i) {
    Instruction& instruction = program[i];
    if (!has_micro_batch(instruction.op)) {
      instruction.buffer = -1;
      continue;
    }
    const Key key(instruction.chunk, instruction.micro_batch);
    std::set<int>& available = free[instruction.chunk];
    if (held.count(key) == 0) {
      if (available.empty()) {
        available.insert(used[instruction.chunk]++);
      }
      held[key] = *available.begin();
      available.erase(available.begin());
    }
    instruction.buffer = held[key];
    if (last[key] == i) {
      available.insert(instruction.buffer);
      held.erase(key);
    }
  }
}

Program naive(const ScheduleShape& shape, int stage) {
  ProgramWriter writer(shape, stage);
  for (int m = 0; m < shape.micro_batches; ++m) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      writer.whole_forward(m, chunk);
    }
    for (int chunk = shape.chunks - 1; chunk >= 0; --chunk) {
      writer.whole_backward(m, chunk);
    }
  }
  writer.end_step();
  return writer.finish();
}

Program gpipe(const ScheduleShape& shape, int stage) {
  ProgramWriter writer(shape, stage);
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    for (int m = 0; m < shape.micro_batches; ++m) {
      writer.whole_forward(m, chunk);
    }
  }
  for (int chunk = shape.chunks - 1; chunk >= 0; --chunk) {
    for (int m = 0; m < shape.micro_batches; ++m) {
      writer.whole_backward(m, chunk);
    }
  }
  writer.end_step();
  return writer.finish();
}

// The k-th backward follows the forward of micro-batch k + ahead. A message is exchanged when the partner is between
// the same two computations: one computation after it was made.
Program one_f_one_b(const ScheduleShape& shape, int stage) {
  ProgramWriter writer(shape, stage);
  const int ahead = shape.stages - 1 - stage;
  for (int m = 0; m < std::min(ahead, shape.micro_batches); ++m) {
    writer.whole_forward(m);
  }
  for (int k = 0; k < shape.micro_batches; ++k) {
    const int m = k + ahead;
    if (k > 0) {
      writer.send_grad(k - 1);
    }
    if (m < shape.micro_batches) {
      writer.recv_activation(m);
      writer.load(m);
      writer.compute(Op::forward, m);
    }
    writer.recv_grad(k);
    if (m < shape.micro_batches) {
      writer.send_activation(m);
    }
    writer.compute(Op::backward, k);
  }
  writer.send_grad(shape.micro_batches - 1);
  writer.end_step();
  return writer.finish_cyclic(std::max(2, std::min(shape.stages - stage, shape.micro_batches)));
}

// One chunk: as in DeepSpeed, an activation is sent at the next micro-batch's turn, before or after receiving on
// even and odd stages. More chunks: groups of as many micro-batches as stages, so that no stage waits for a second
// round.
Program forward_only(const ScheduleShape& shape, int stage) {
  ProgramWriter writer(shape, stage);
  if (shape.chunks == 1) {
    for (int m = 0; m < shape.micro_batches; ++m) {
      writer.load(m);
      if (stage % 2 == 1) {
        writer.recv_activation(m);
      }
      if (m > 0) {
        writer.send_activation(m - 1);
      }
      if (stage % 2 == 0) {
        writer.recv_activation(m);
      }
      writer.compute(Op::forward, m);
    }
    writer.send_activation(shape.micro_batches - 1);
    return writer.finish_cyclic(2);
  }
  for (int group = 0; group < shape.micro_batches; group += shape.stages) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int m = group; m < std::min(group + shape.stages, shape.micro_batches); ++m) {
        writer.whole_forward(m, chunk);
      }
    }
  }
  return writer.finish();
}

} // namespace trireme::pipeline
