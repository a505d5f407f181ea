#include <trireme/estimate/activation_choice.h>

#include <trireme/base/error.h>
#include <trireme/estimate/activations.h>
#include <trireme/estimate/layouts.h>

#include <algorithm>
#include <utility>

namespace trireme::estimate {

StageProblem stage_problem(const Run& run, int64_t stage) {
  Run recomputed = run; // inputs are shared where layers are recomputed
  recomputed.activations.automatic = false;
  recomputed.activations.policy = activations::Way::recompute;
  const std::vector<int64_t> shared = shared_inputs(recomputed);
  const std::vector<bool> is_part = parts(run);
  StageProblem out;
  activations::Problem& problem = out.problem;
  problem.budget = run.activations.memory_budget;
  problem.moving_copies = moving_copies(run);
  problem.in_flight = std::max<int64_t>(1, *std::ranges::max_element(run.in_flight.at(static_cast<size_t>(stage))));
  problem.allowed = {activations::Way::keep, activations::Way::recompute};
  if (run.on_device) {
    problem.allowed.insert(problem.allowed.end(), {activations::Way::host, activations::Way::recompute_host});
  }
  if (run.activations.uses_nvme()) {
    problem.allowed.insert(problem.allowed.end(), {activations::Way::nvme, activations::Way::recompute_nvme});
  }
  const int64_t together = std::max<int64_t>(1, run.recompute_interval);
  for (const std::vector<int64_t>& layers : layers_of(run, stage)) {
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
      problem.parts.push_back({.bytes = std::max<int64_t>(0, kept - input), .input_bytes = input, .share_bytes = kept_input(run, shared, layer)});
      out.layers.push_back(layer);
    }
  }
  return out;
}

activations::NoChoice why_no_choice(const Run& run, int64_t stage, const activations::Problem& problem, const activations::Choice& least) {
  return activations::why_none_fits(problem, least, run.stages > 1 ? concat(" of stage ", stage) : "");
}

std::optional<activations::NoChoice> why_no_choice(const Run& run) {
  for (int64_t stage = 0; run.activations.automatic && stage < run.stages; ++stage) {
    const activations::Problem problem = stage_problem(run, stage).problem;
    activations::Problem larger = problem;
    larger.budget += static_cast<int64_t>(kKeptError * static_cast<double>(problem.budget));
    if (const activations::Choice choice = activations::choose(larger); !choice.fits) {
      return why_no_choice(run, stage, problem, choice);
    }
  }
  return std::nullopt;
}

} // namespace trireme::estimate
