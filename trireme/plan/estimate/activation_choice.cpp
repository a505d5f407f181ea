#include <trireme/plan/estimate/activation_choice.h>

#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/wire_sizes.h>
#include <trireme/plan/estimate/activations.h>
#include <trireme/plan/estimate/layouts.h>
#include <trireme/plan/estimate/memory.h>

#include <algorithm>
#include <utility>

namespace trireme::estimate {

namespace {

// The problem without its parts.
activations::Problem problem_of(const Run& run, int64_t stage) {
  activations::Problem problem;
  problem.budget = run.activations.memory_budget;
  problem.moving_copies = activations::moving_copies(run.on_device);
  problem.in_flight = std::max<int64_t>(1, *std::ranges::max_element(run.in_flight.at(static_cast<size_t>(stage))));
  problem.put_off = run.most_held.empty() ? 0 : run.most_held.at(static_cast<size_t>(stage)).put_off;
  problem.allowed = activations::ways_that_move(run.on_device, run.activations.uses_nvme());
  return problem;
}

// Bytes of each layer's input that tensor ranks share if the layer is recomputed.
std::vector<int64_t> shared_if_recomputed(const Run& run) {
  if (!run.activations.shares_inputs) {
    return std::vector<int64_t>(run.model.layers.size(), 0);
  }
  Run recomputed = run;
  recomputed.activations.automatic = false;
  recomputed.activations.policy = activations::Way::recompute;
  return shared_inputs(recomputed);
}

} // namespace

std::vector<StageProblem> stage_problems(const Run& run) {
  const std::vector<int64_t> shared = shared_if_recomputed(run);
  const std::vector<bool> is_part = parts(run);
  const int64_t together = std::max<int64_t>(1, run.recompute_interval);
  std::vector<StageProblem> out;
  for (int64_t stage = 0; stage < run.stages; ++stage) {
    StageProblem& one = out.emplace_back();
    one.problem = problem_of(run, stage);
    const auto chunks = layers_of(run, stage);
    for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      const std::vector<int64_t>& layers = chunks[chunk];
      for (int64_t first = 0; first < std::ssize(layers); first += together) {
        const int64_t layer = layers[static_cast<size_t>(first)];
        if (!is_part[static_cast<size_t>(layer)]) {
          continue;
        }
        int64_t kept = 0;
        for (int64_t i = first; i < std::min<int64_t>(first + together, std::ssize(layers)); ++i) {
          kept += run.model.layers[static_cast<size_t>(layers[static_cast<size_t>(i)])].kept;
        }
        const int64_t input = run.model.layers[static_cast<size_t>(layer)].input;
        const int64_t header =
            first == 0 && (stage > 0 || chunk > 0) ? pipeline::kHeaderBytes : 0; // comes from another stage
        one.problem.parts.push_back({.bytes = std::max<int64_t>(0, kept - input),
                                     .input_bytes = input + header,
                                     .share_bytes = kept_input(run, shared, layer) + header});
        one.layers.push_back(layer);
      }
    }
  }
  return out;
}

activations::NoChoice why_no_choice(const Run& run, int64_t stage, const activations::Problem& problem,
                                    const activations::Choice& least) {
  return activations::why_none_fits(problem, least, run.stages > 1 ? concat(" of stage ", stage) : "");
}

std::optional<activations::NoChoice> why_no_choice(const Run& run) {
  if (!run.activations.automatic) {
    return std::nullopt;
  }
  const int64_t budget = run.activations.memory_budget;
  std::optional<activations::NoChoice> why;
  int64_t most = 0;
  const std::vector<StageProblem> problems = stage_problems(run);
  for (int64_t stage = 0; stage < run.stages; ++stage) {
    activations::Problem problem = problems[static_cast<size_t>(stage)].problem;
    problem.budget = budget + static_cast<int64_t>(kKeptError * static_cast<double>(budget));
    if (const activations::Choice choice = activations::choose(problem); !choice.fits && choice.bytes > most) {
      most = choice.bytes;
      problem.budget = budget;
      why = why_no_choice(run, stage, problem, choice);
    }
  }
  return why;
}

} // namespace trireme::estimate
