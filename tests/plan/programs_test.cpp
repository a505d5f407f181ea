// A pipeline's program as the plan says it: what is in flight, and weights' gradients that come later than those of
// inputs.
#include "multiplying.h"

#include <trireme/plan/predict.h>
#include <trireme/plan/programs.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace trireme::plan {
namespace {

using pipeline::ScheduleKind;

// Phases say a program again, with few words.
TEST(ProgramsTest, PhasesAreTheProgram) {
  for (const auto& [kind, chunks] : {std::pair(ScheduleKind::interleaved, 3),
                                     {ScheduleKind::naive, 2},
                                     {ScheduleKind::gpipe, 2},
                                     {ScheduleKind::one_f_one_b, 1},
                                     {ScheduleKind::zero_bubble, 1}}) {
    for (const pipeline::Program& program : pipeline::make_programs(kind, {4, 64, chunks})) {
      std::vector<std::pair<pipeline::Op, int64_t>> expected;
      for (const pipeline::Instruction& instruction : program) {
        if (instruction.op >= pipeline::Op::forward && instruction.op <= pipeline::Op::backward_weight) {
          expected.emplace_back(instruction.op, instruction.chunk);
        }
      }
      std::vector<std::pair<pipeline::Op, int64_t>> said;
      const std::vector<estimate::Run::Phase> phases = phases_of(program);
      for (const estimate::Run::Phase& phase : phases) {
        for (int64_t i = 0; i < phase.repeats; ++i) {
          for (const auto& [computed, chunk] : phase.computations) {
            said.emplace_back(computed, chunk);
          }
        }
      }
      EXPECT_EQ(said, expected) << pipeline::schedule_name(kind);
      EXPECT_LT(phases.size(), expected.size() / 3) << pipeline::schedule_name(kind);
    }
  }
}

// With sequence parallelism the weights' half of a backward gathers inputs again, two a block; not on the first stage,
// nor where layers are recomputed.
TEST(ProgramsTest, WeightsThatComeLaterGatherInputsAgain) {
  const Job what = job(4, 8);
  const auto work = [&](ScheduleKind kind, bool sequence_parallel, int64_t recompute) { // of both stages
    const Layout layout{
        .pipe = 2, .tensor = 2, .schedule = kind, .recompute = recompute, .sequence_parallel = sequence_parallel};
    const Prediction p = predict(multiplying(4, 0), what, layout);
    return 2 * p.pipeline_seconds * (1 - p.bubble);
  };
  const auto more = [&](bool sequence_parallel, int64_t recompute) {
    return work(ScheduleKind::zero_bubble, sequence_parallel, recompute) -
           work(ScheduleKind::one_f_one_b, sequence_parallel, recompute);
  };
  Shared shared(what);
  const auto blocks = static_cast<double>(6 - shared.bounds({.pipe = 2, .tensor = 2})[1]); // of the last stage
  const double pass = 4.0 * 16 * 64 / 2 / 1e6;
  EXPECT_NEAR(more(true, 0), 8 * blocks * 2 * pass, 1e-9);
  EXPECT_NEAR(more(false, 0), 0, 1e-9);
  EXPECT_NEAR(more(true, 1), 0, 1e-9);
}

// Where layers are recomputed nothing is left for later, so zero-bubble waits as 1f1b does.
TEST(ProgramsTest, RecomputedLayersHaveNoWeightsForLater) {
  Cluster cluster = multiplying(4);
  cluster.levels[0].bandwidth = kInfinite;
  const Job even = job(2 * 4 * 32, 16);
  const auto bubble = [&](ScheduleKind kind, int64_t recompute) {
    return predict(cluster, even, {.pipe = 4, .schedule = kind, .recompute = recompute}).bubble;
  };
  EXPECT_LT(bubble(ScheduleKind::zero_bubble, 0), 0.6 * bubble(ScheduleKind::one_f_one_b, 0));
  EXPECT_GT(bubble(ScheduleKind::zero_bubble, 1), 0.8 * bubble(ScheduleKind::one_f_one_b, 1));
}

// Whatever a micro-batch takes before and after its backward_input, no moment needs more than the one that counts.
TEST(ProgramsTest, TheMomentOfAZeroBubblePipelineThatNeedsMost) {
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int m : {1, p, 2 * p + 1, 8 * p}) {
      for (const pipeline::Program& program : pipeline::make_programs(ScheduleKind::zero_bubble, {p, m, 1})) {
        const pipeline::HeldMicroBatches said = pipeline::most_held(program);
        for (const int64_t put_off : {0, 1, 3, 10, 1000}) { // bytes, beside 10 that a micro-batch keeps
          int64_t forwards = 0, inputs = 0, weights = 0, most = 0;
          for (const pipeline::Instruction& instruction : program) {
            forwards += instruction.op == pipeline::Op::forward ? 1 : 0;
            inputs += instruction.op == pipeline::Op::backward_input ? 1 : 0;
            weights += instruction.op == pipeline::Op::backward_weight ? 1 : 0;
            most = std::max(most, 10 * (forwards - weights) + put_off * (inputs - weights));
          }
          EXPECT_EQ(10 * said.in_flight + put_off * said.put_off, most)
              << p << " stages, " << m << " micro-batches, " << put_off;
        }
      }
    }
  }
}

// The last stage has few forwards ahead of backwards, but keeps as many gradients as the first one keeps activations.
TEST(ProgramsTest, WeightsThatComeLaterKeepGradients) {
  const Job what = job(8, 16);
  const auto activations = [&](ScheduleKind kind) {
    const Layout layout{.pipe = 4, .schedule = kind};
    Shared shared(what);
    std::vector<int64_t> bytes;
    for (const estimate::StageMemory& stage : estimate::memory_of(run_of(what, layout, shared))) {
      bytes.push_back(stage.item(estimate::Category::activations).bytes);
    }
    return bytes;
  };
  const std::vector<int64_t> all = activations(ScheduleKind::zero_bubble);
  const std::vector<int64_t> alone = activations(ScheduleKind::one_f_one_b);
  EXPECT_EQ(all[0], alone[0]) << "the first stage splits nothing";
  const estimate::Model model = model_of(what, {.pipe = 4});
  Shared shared(what);
  const std::vector<int64_t>& bounds = shared.bounds({.pipe = 4});
  for (const int64_t stage : {1, 2, 3}) {
    int64_t kept = stage == 3 ? model.loss_kept : 0;
    int64_t put_off = 0;
    for (int64_t i = bounds[stage]; i < bounds[stage + 1]; ++i) {
      kept += model.layers[i].kept;
      put_off += model.layers[i].put_off;
    }
    EXPECT_EQ(all[stage] - alone[stage], stage * kept + (stage + 1) * put_off)
        << "4 micro-batches instead of " << 4 - stage << ", and gradients of " << stage + 1;
  }
}

// In flight for few micro-batches is what it is for many.
TEST(ProgramsTest, FewMicroBatchesTellWhatManyKeep) {
  const Job any = job(64, 1);
  for (const auto& [kind, chunks] : {std::pair(ScheduleKind::one_f_one_b, 1),
                                     {ScheduleKind::interleaved, 2},
                                     {ScheduleKind::interleaved, 4},
                                     {ScheduleKind::zero_bubble, 1},
                                     {ScheduleKind::naive, 1}}) {
    for (const int p : {2, 3, 4, 8}) {
      for (const int m : {4 * p + 1, 5 * p, 8 * p, 11 * p + 1}) {
        Shared shared(any);
        const pipeline::ScheduleShape shape{p, m, chunks};
        std::vector<std::vector<int64_t>> all;
        for (const pipeline::Program& program : pipeline::make_programs(kind, shape)) {
          all.push_back(pipeline::most_in_flight(program, chunks));
        }
        if (kind == ScheduleKind::zero_bubble) {
          std::vector<pipeline::HeldMicroBatches> moments;
          for (const pipeline::Program& program : pipeline::make_programs(kind, shape)) {
            moments.push_back(pipeline::most_held(program));
          }
          EXPECT_EQ(shared.most_held(shape), moments) << p << ' ' << m;
        }
        EXPECT_EQ(shared.in_flight(kind, shape), all)
            << pipeline::schedule_name(kind) << ' ' << p << ' ' << m << ' ' << chunks;
      }
    }
  }
}

} // namespace
} // namespace trireme::plan
