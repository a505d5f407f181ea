#include <trireme/plan/programs.h>

#include <algorithm>

namespace trireme::plan {
namespace {

using estimate::Run;

std::vector<Run::Computation> computations_of(const pipeline::Program& program) {
  std::vector<Run::Computation> computations;
  for (const pipeline::Instruction& instruction : program) {
    if (pipeline::computes(instruction.op)) {
      computations.push_back({instruction.op, instruction.chunk});
    }
  }
  return computations;
}

// How often the `size` computations from `begin` on are repeated.
int64_t repeats_of(const std::vector<Run::Computation>& all, int64_t begin, int64_t size) {
  int64_t end = begin + size;
  while (end < std::ssize(all) && all[end] == all[end - size]) {
    ++end;
  }
  return (end - begin) / size;
}

} // namespace

std::vector<Run::Phase> phases_of(const pipeline::Program& program) {
  constexpr int64_t kLongest = 3; // forward, backward, and backward of the weights
  const std::vector<Run::Computation> all = computations_of(program);
  std::vector<Run::Phase> phases;
  for (int64_t begin = 0; begin < std::ssize(all);) {
    int64_t size = 1;
    int64_t repeats = repeats_of(all, begin, 1);
    for (int64_t longer = 2; longer <= std::min(kLongest, std::ssize(all) - begin); ++longer) {
      const int64_t often = repeats_of(all, begin, longer);
      if (often > 1 && longer * often > size * repeats) {
        size = longer;
        repeats = often;
      }
    }
    const auto first = all.begin() + begin;
    if (repeats == 1 && !phases.empty() && phases.back().repeats == 1) {
      phases.back().computations.push_back(*first);
    } else {
      phases.push_back({{first, first + size}, repeats});
    }
    begin += size * repeats;
  }
  return phases;
}

pipeline::ScheduleShape fewer_micro_batches(pipeline::ScheduleKind kind, const pipeline::ScheduleShape& shape) {
  pipeline::ScheduleShape few = shape;
  if (shape.micro_batches > 4 * shape.stages && kind != pipeline::ScheduleKind::gpipe) {
    few.micro_batches = 3 * shape.stages + shape.micro_batches % shape.stages;
  }
  return few;
}

std::vector<Run::Programs> programs_of(pipeline::ScheduleKind kind, const pipeline::ScheduleShape& shape) {
  pipeline::ScheduleShape few = fewer_micro_batches(kind, shape);
  std::vector<Run::Programs> out;
  const auto add = [&] {
    Run::Programs& programs = out.emplace_back();
    programs.micro_batches = few.micro_batches;
    for (const pipeline::Program& program : pipeline::make_programs(kind, few)) {
      programs.stages.push_back(phases_of(program));
    }
  };
  add();
  if (few.micro_batches < shape.micro_batches) {
    few.micro_batches += shape.stages;
    add();
  }
  return out;
}

} // namespace trireme::plan
