#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/program_writer.h>

#include <limits>

namespace trireme::pipeline {
namespace {

// All stages in lockstep; forward, input gradient and weight gradient take one tick each. A stage takes the first of
// these that is possible: a forward, if at most p - stage await their input gradient (as in 1F1B) and at most p their
// weight gradient (the memory of 1F1B's first stage); an input gradient; a weight gradient. This takes 3m + p - 1 ticks
// for m >= p and, below, 2p + 2m - 1, in which the last stage starts as early as possible.
class Simulation {
 public:
  explicit Simulation(const ScheduleShape& shape)
      : p_(shape.stages),
        m_(shape.micro_batches),
        stages_(p_),
        forward_at_(size_t(p_) * m_, kNever),
        input_at_(size_t(p_) * m_, kNever) {}

  void run() {
    const int most = 3 * (m_ + p_); // more ticks would be a bug in this loop: report it, do not hang
    int done = 0;
    for (int tick = 0; tick < most && done < p_; ++tick) {
      done = 0;
      for (int s = 0; s < p_; ++s) {
        step(s, tick);
        done += stages_[s].weights == m_ ? 1 : 0;
      }
    }
    if (done < p_) {
      throw Error("schedule",
                  concat("no zero-bubble schedule was found for ", p_, " stages and ", m_, " micro-batches"),
                  "Use 1f1b.");
    }
  }

  struct Step {
    Op op;
    int micro_batch;
  };
  const std::vector<Step>& steps(int stage) const { return stages_[stage].steps; }

 private:
  static constexpr int kNever = std::numeric_limits<int>::max();
  struct Stage {
    int forwards = 0;
    int inputs = 0;
    int weights = 0;
    std::vector<Step> steps;
  };

  int& forward_at(int stage, int micro_batch) { return forward_at_[size_t(stage) * m_ + micro_batch]; }
  int& input_at(int stage, int micro_batch) { return input_at_[size_t(stage) * m_ + micro_batch]; }

  void step(int s, int tick) {
    Stage& stage = stages_[s];
    const bool room = stage.forwards - stage.inputs < p_ - s && stage.forwards - stage.weights < p_;
    if (stage.forwards < m_ && room && (s == 0 || forward_at(s - 1, stage.forwards) < tick)) {
      forward_at(s, stage.forwards) = tick;
      stage.steps.push_back({Op::forward, stage.forwards++});
    } else if (stage.inputs < stage.forwards && (s == p_ - 1 || input_at(s + 1, stage.inputs) < tick)) {
      input_at(s, stage.inputs) = tick;
      stage.steps.push_back({Op::backward_input, stage.inputs++});
    } else if (stage.weights < stage.inputs) {
      stage.steps.push_back({Op::backward_weight, stage.weights++});
    }
  }

  int p_;
  int m_;
  std::vector<Stage> stages_;
  std::vector<int> forward_at_; // tick in which it ran
  std::vector<int> input_at_;
};

} // namespace

std::vector<Program> zero_bubble(const ScheduleShape& shape) {
  Simulation simulation(shape);
  simulation.run();
  std::vector<Program> programs;
  for (int s = 0; s < shape.stages; ++s) {
    ProgramWriter writer(shape, s);
    for (const auto& [op, micro_batch] : simulation.steps(s)) {
      if (op == Op::forward) {
        writer.whole_forward(micro_batch);
      } else if (op == Op::backward_input) {
        writer.whole_backward(micro_batch, 0, op);
      } else {
        writer.compute(op, micro_batch);
      }
    }
    writer.end_step();
    programs.push_back(writer.finish());
  }
  return programs;
}

} // namespace trireme::pipeline
