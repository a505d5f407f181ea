#include <trireme/engine/make_activations.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/engine/same_options.h>
#include <trireme/parallel/pipeline/held.h>
#include <trireme/plan/estimate/machine_memory.h>

#include <torch/utils.h>

#include <algorithm>
#include <set>

namespace trireme::engine {
namespace {

// The most micro-batches that this stage has in flight, and how many of them have a deferred backward.
pipeline::HeldMicroBatches held_of(const Parts& parts) {
  if (!parts.runs_schedule() || parts.ranks.pipe.size() == 1) {
    return {1, 0};
  }
  const pipeline::PipelineOptions& options = parts.model.layers->options();
  const pipeline::ScheduleShape shape{parts.ranks.pipe.size(), static_cast<int>(parts.settings.batch.accumulation),
                                      options.chunks};
  const pipeline::Program program = options.custom_schedule
                                        ? options.custom_schedule(shape, parts.ranks.pipe.rank())
                                        : pipeline::make_program(options.schedule, shape, parts.ranks.pipe.rank());
  const std::vector<int64_t> most = pipeline::most_in_flight(program, shape.chunks);
  return {std::max<int64_t>(1, *std::max_element(most.begin(), most.end())), pipeline::most_held(program).put_off};
}

// All tensor ranks have the same inputs of parts.
activations::Sharing sharing_of(const comm::Group& ranks) {
  return {ranks.rank(), ranks.size(), [ranks](const at::Tensor& whole, const at::Tensor& share) {
            ranks.all_gather(whole, share, "shares of inputs").wait();
          }};
}

// Bytes of host memory available to one rank.
int64_t host_room(const Parts& parts) {
  return estimate::memory_at_hand().bytes / parts.stepper.activations->options().ranks_on_host;
}

at::Tensor as_tensor(const std::vector<double>& numbers) {
  return torch::tensor(numbers, torch::kFloat64);
}

std::vector<double> largest(const std::vector<double>& own, const comm::Group& ranks) {
  at::Tensor numbers = as_tensor(own);
  ranks.all_reduce(numbers, comm::ReduceOp::max, "costs of activations").wait();
  return {numbers.const_data_ptr<double>(), numbers.const_data_ptr<double>() + numbers.numel()};
}

// Merges the choices of all stages by the places of their parts. A stage without a part at a place keeps activations.
activations::Decision whole_decision(const Parts& parts) {
  const activations::Decision own = parts.stepper.activations->decision();
  const std::vector<int64_t> places = parts.stepper.activations->places();
  const auto count = static_cast<size_t>(parts.model.layers ? parts.model.layers->layers().size() : own.ways.size());
  std::vector<double> whole(4 * count, 0);
  for (size_t i = 0; i < own.ways.size(); ++i) {
    double* const at = &whole.at(4 * static_cast<size_t>(places[i]));
    at[0] = static_cast<double>(own.ways[i]);
    at[1] = static_cast<double>(own.bytes[i]);
    at[2] = static_cast<double>(own.input_bytes[i]);
    at[3] = static_cast<double>(own.share_bytes[i]);
  }
  whole = largest(whole, parts.ranks.pipe);
  activations::Decision decision;
  for (size_t i = 0; i < count; ++i) {
    const double* const at = &whole[4 * i];
    decision.ways.push_back(static_cast<activations::Way>(static_cast<int>(at[0])));
    decision.bytes.push_back(static_cast<int64_t>(at[1]));
    decision.input_bytes.push_back(static_cast<int64_t>(at[2]));
    decision.share_bytes.push_back(static_cast<int64_t>(at[3]));
  }
  return decision;
}

// The conditions under which a saved choice is valid.
nlohmann::json circumstances(const Parts& parts) {
  nlohmann::json of = {
      {"parameters", parts.buffers.num_parameters},
      {"ranks",
       {parts.ranks.pipe.size(), parts.ranks.data.size(), parts.ranks.context.size(), parts.ranks.tensor.size()}},
      {"micro_batch", parts.settings.batch.micro},
      {"accumulation", parts.settings.batch.accumulation},
      {"device", c10::DeviceTypeName(parts.device().type(), /*lower_case=*/true)}};
  for (const char* section : {"activation_checkpointing", "pipeline", "aio"}) {
    of[section] = parts.settings.used_config.value(section, nlohmann::ordered_json());
  }
  return of;
}

// Classes of the layers in a list of layers; otherwise of the parts that this rank has called.
std::vector<std::string> classes_of(const Parts& parts) {
  std::set<std::string> names;
  if (parts.model.layers) {
    for (const pipeline::Layer& layer : parts.model.layers->layers()) {
      names.emplace(layer.type());
    }
  } else {
    const std::vector<std::string> called = parts.stepper.activations->left_out();
    names.insert(called.begin(), called.end());
  }
  return {names.begin(), names.end()};
}

// "layers" names classes; matching none is a mistake that would otherwise go unnoticed.
void check_layers(const Parts& parts) {
  const std::string& pattern = parts.stepper.activations->options().layers;
  if (parts.stepper.activations->steps() != 1 || pattern.empty()) {
    return;
  }
  const bool any =
      largest({static_cast<double>(parts.stepper.activations->ways().size())}, parts.ranks.everyone).front() > 0;
  check_together(parts.ranks.everyone, [&] {
    if (!any) {
      const std::vector<std::string> names = classes_of(parts);
      throw InputError(
          "engine",
          concat("activation_checkpointing.layers \"", pattern, "\" matches no class of a part of the model: ",
                 names.empty() ? "it has no parts" : concat("there are ", join(names, ", "))),
          "Name one of them, or remove layers to treat all of them.");
    }
  });
}

void end_adoption(const Parts& parts, StepState& state) {
  const bool doubts =
      largest({parts.stepper.activations->doubts_adopted() ? 1.0 : 0.0}, parts.ranks.everyone).front() > 0;
  parts.stepper.activations->end_adoption(!doubts);
  if (doubts) {
    state.chosen_ways = nullptr;
    if (parts.ranks.everyone.rank() == 0) {
      log::info(
          "activation_checkpointing: parts of the model have other inputs than in the run that saved the checkpoint; "
          "policies are measured again");
    }
  }
}

// Runs once, after the first step has shown the policies of the parts.
void note_nothing_to_share(const Parts& parts) {
  const activations::Activations& all = *parts.stepper.activations;
  if (!all.options().shares_inputs || all.options().automatic || all.steps() != 1) {
    return;
  }
  const std::vector<activations::Way> ways = all.ways();
  const bool any = std::any_of(ways.begin(), ways.end(), activations::recomputes);
  if (largest({any ? 1.0 : 0.0}, parts.ranks.everyone).front() == 0 && parts.ranks.everyone.rank() == 0) {
    log::info(
        "activation_checkpointing.partition_activations has no effect: it shares inputs of recomputed parts, and no "
        "part "
        "is recomputed",
        all.options().policy ? "" : ". \"policy\": \"recompute\" recomputes all of them");
  }
}

} // namespace

void make_activations(Parts& parts, const InitializeOptions& options, int64_t ranks_of_host) {
  activations::Options wanted = options.config.activations;
  const auto worker = env::place("TRIREME_LOCAL_WORKER"); // of a job whose ranks each have a world of their own
  wanted.ranks_on_host = std::max(ranks_of_host, worker ? int64_t{worker->second} : 1);
  if (wanted.shares_inputs && (parts.ranks.tensor.size() == 1 || options.sequence_parallel)) {
    wanted.shares_inputs = false;
    if (parts.ranks.everyone.rank() == 0) {
      log::info("activation_checkpointing.partition_activations has no effect: ",
                parts.ranks.tensor.size() == 1
                    ? "no tensor ranks have the same inputs"
                    : "with sequence_parallel the inputs of parts are already split among tensor ranks");
    }
  }
  if (!wanted.on()) {
    return;
  }
  if (parts.device().is_cpu() && parts.ranks.everyone.rank() == 0 &&
      (wanted.inputs_to_host || (wanted.policy && activations::to_host(*wanted.policy)))) {
    log::info("activation_checkpointing: the model is on the CPU, so moving activations to the host has no effect");
  }
  const pipeline::HeldMicroBatches held = held_of(parts);
  parts.stepper.activations =
      std::make_unique<activations::Activations>(std::move(wanted), parts.device(), options.config.offload.aio,
                                                 held.in_flight, sharing_of(parts.ranks.tensor), held.put_off);
}

void adopt_chosen_ways(const Parts& parts, StepState& state, const nlohmann::json& saved) {
  if (!parts.stepper.activations || !parts.stepper.activations->options().automatic ||
      parts.stepper.activations->options().profile || parts.stepper.activations->steps() > 0) {
    return;
  }
  activations::Decision decision;
  double other = 1;
  if (parts.stepper.activations->ways().empty() && saved.is_object() && saved.at("for") == circumstances(parts)) {
    decision = {activations::from_words(saved.at("ways")), saved.at("bytes"), saved.at("input_bytes"),
                saved.at("share_bytes")};
    const size_t count = decision.ways.size();
    const bool is_whole =
        decision.bytes.size() == count && decision.input_bytes.size() == count && decision.share_bytes.size() == count;
    other = is_whole && parts.stepper.activations->has_room_for(decision, host_room(parts)) ? 0 : 1;
  }
  if (largest({other}, parts.ranks.everyone).front() > 0) {
    return;
  }
  parts.stepper.activations->adopt(std::move(decision), /*all=*/!parts.model.layers);
  state.chosen_ways = saved;
  if (parts.ranks.everyone.rank() == 0) {
    log::info("activation_checkpointing: using the choice of the run that saved the checkpoint: \"",
              join(saved.at("ways").get<std::vector<std::string>>(), "\", \""), '"');
  }
}

void end_step_of_activations(const Parts& parts, StepState& state) {
  if (!parts.stepper.activations) {
    return;
  }
  parts.stepper.activations->end_step();
  check_layers(parts);
  note_nothing_to_share(parts);
  if (parts.stepper.activations->wants_adoption()) {
    end_adoption(parts, state);
  }
  if (!parts.stepper.activations->wants_decision()) {
    return;
  }
  std::vector<double> own;
  check_together(parts.ranks.everyone, [&] { own = parts.stepper.activations->measured(host_room(parts)); });
  const auto count = static_cast<double>(own.size());
  const std::vector<double> counts = largest({count, -count}, parts.ranks.stage);
  std::string said;
  check_together(parts.ranks.everyone, [&] {
    if (counts[0] != -counts[1]) {
      throw Error(
          "engine",
          concat("ranks of one stage call different numbers of parts with \"activation_checkpointing\": they measured ",
                 -counts[1], " to ", counts[0], " values"),
          "Run the same layers on all ranks in every step.");
    }
  });
  const std::vector<double> agreed = largest(own, parts.ranks.stage);
  check_together(parts.ranks.everyone, [&] { said = parts.stepper.activations->decide(agreed); });
  const std::string stage =
      parts.ranks.pipe.size() > 1 ? concat("stage ", parts.ranks.pipe.rank(), ": ") : std::string();
  if (parts.ranks.stage.rank() == 0) {
    log::info(stage, said);
  }
  if (parts.stepper.activations->options().automatic) {
    const activations::Decision decision = whole_decision(parts);
    const std::vector<std::string> words = activations::to_words(decision.ways);
    state.chosen_ways = {{"for", circumstances(parts)},
                         {"ways", words},
                         {"bytes", decision.bytes},
                         {"input_bytes", decision.input_bytes},
                         {"share_bytes", decision.share_bytes}};
    if (parts.ranks.everyone.rank() == 0) {
      log::info("activation_checkpointing has chosen. To choose the same in another run: \"choices\": [\"",
                join(words, "\", \""), "\"]");
    }
  }
}

} // namespace trireme::engine
