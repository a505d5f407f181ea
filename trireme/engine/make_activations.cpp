#include <trireme/engine/make_activations.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/engine/same_options.h>

#include <torch/utils.h>

#include <algorithm>

namespace trireme::engine {
namespace {

// Micro-batches that this stage has in flight.
int64_t in_flight(const Parts& parts) {
  if (!parts.runs_schedule() || parts.pipe.size() == 1) {
    return 1;
  }
  const pipeline::PipelineOptions& options = parts.layers->options();
  const pipeline::ScheduleShape shape{parts.pipe.size(), static_cast<int>(parts.batch.accumulation), options.chunks};
  const pipeline::Program program = options.custom_schedule ? options.custom_schedule(shape, parts.pipe.rank()) : pipeline::make_program(options.schedule, shape, parts.pipe.rank());
  const std::vector<int64_t> most = pipeline::most_in_flight(program, shape.chunks);
  return std::max<int64_t>(1, *std::max_element(most.begin(), most.end()));
}

at::Tensor as_tensor(const std::vector<double>& numbers) {
  return torch::tensor(numbers, torch::kFloat64);
}

std::vector<double> largest(const std::vector<double>& own, const comm::Group& ranks) {
  at::Tensor numbers = as_tensor(own);
  ranks.all_reduce(numbers, comm::ReduceOp::max, "costs of activations").wait();
  return {numbers.const_data_ptr<double>(), numbers.const_data_ptr<double>() + numbers.numel()};
}

// The choices of all stages, by the places of their parts; where a stage has none at a place, activations are kept.
std::vector<activations::Way> all_ways(const Parts& parts) {
  const std::vector<activations::Way> own = parts.activations->ways();
  const std::vector<int64_t> places = parts.activations->places();
  std::vector<double> whole(static_cast<size_t>(parts.layers ? parts.layers->layers().size() : std::ssize(own)), 0);
  for (size_t i = 0; i < own.size(); ++i) {
    whole.at(static_cast<size_t>(places[i])) = static_cast<double>(own[i]);
  }
  std::vector<activations::Way> ways;
  for (const double way : largest(whole, parts.pipe)) {
    ways.push_back(static_cast<activations::Way>(static_cast<int>(way)));
  }
  return ways;
}

} // namespace

void make_activations(Parts& parts, const InitializeOptions& options) {
  activations::Options wanted = options.config.activations;
  if (!wanted.on()) {
    return;
  }
  if (parts.device().is_cpu() && parts.everyone.rank() == 0 && (wanted.inputs_to_host || (wanted.policy && activations::to_host(*wanted.policy)))) {
    log::info("activation_checkpointing: the model is on the CPU, whose memory is the host's: what is to go to the host stays where it is");
  }
  parts.activations = std::make_unique<activations::Activations>(std::move(wanted), parts.device(), options.config.offload.aio, in_flight(parts));
}

void end_step_of_activations(Parts& parts) {
  if (!parts.activations) {
    return;
  }
  parts.activations->end_step();
  if (!parts.activations->wants_decision()) {
    return;
  }
  std::vector<double> own;
  check_together(parts.everyone, [&] { own = parts.activations->measured(); });
  const auto count = static_cast<double>(own.size());
  const std::vector<double> counts = largest({count, -count}, parts.stage);
  std::string said;
  check_together(parts.everyone, [&] {
    if (counts[0] != -counts[1]) {
      throw Error("engine", concat("ranks of one stage call different numbers of parts whose activations are to be treated: between ", -counts[1], " and ", counts[0], " numbers were measured"),
                  "All ranks must run the same layers in a step.");
    }
  });
  const std::vector<double> agreed = largest(own, parts.stage);
  check_together(parts.everyone, [&] { said = parts.activations->decide(agreed); });
  const std::string stage = parts.pipe.size() > 1 ? concat("stage ", parts.pipe.rank(), ": ") : std::string();
  if (parts.stage.rank() == 0) {
    log::info(stage, said);
  }
  if (parts.activations->options().automatic) {
    const std::vector<std::string> words = activations::to_words(all_ways(parts));
    if (parts.everyone.rank() == 0) {
      log::info("activation_checkpointing has chosen. To choose the same in another run: \"choices\": [\"", join(words, "\", \""), "\"]");
    }
  }
}

} // namespace trireme::engine
