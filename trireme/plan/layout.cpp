#include <trireme/plan/layout.h>

#include <trireme/plan/conflict.h>

#include <trireme/base/error.h>
#include <trireme/plan/estimate/layouts.h>
#include <trireme/plan/programs.h>

#include <algorithm>

namespace trireme::plan {
namespace {

// Embeddings, blocks, norm and head.
int64_t layers_of(const Job& job) {
  return job.model.layers + job.model.embeddings() + 2;
}

std::string where(const char* what, offload::Place place) {
  return place == offload::Place::device
             ? ""
             : concat(", ", what, place == offload::Place::host ? " on the host" : " in files");
}

std::string does_not_divide(const char* what, int64_t number, const char* by, int64_t divisor) {
  return concat(what, ' ', number, " cannot be divided by ", by, ' ', divisor);
}

// Every layout has the same parameters in the same order.
void mark_trained(const Job& job, estimate::Model& model) {
  for (size_t i = 0; i < std::min(job.trained.size(), model.layers.size()); ++i) {
    std::vector<estimate::Parameter>& parameters = model.layers[i].parameters;
    for (size_t k = 0; k < std::min(job.trained[i].size(), parameters.size()); ++k) {
      parameters[k].trained = job.trained[i][k];
    }
  }
}

} // namespace

std::vector<std::vector<bool>> trained_in(const estimate::Model& model) {
  std::vector<std::vector<bool>> out;
  for (const estimate::Layer& layer : model.layers) {
    std::vector<bool>& of_layer = out.emplace_back();
    for (const estimate::Parameter& parameter : layer.parameters) {
      of_layer.push_back(parameter.trained);
    }
  }
  return out;
}

std::string describe(const Layout& layout, const Job& job) {
  return concat("pipe ", layout.pipe, ", data ", layout.data, ", context ", layout.context, ", tensor ", layout.tensor,
                layout.sequence_parallel ? " with sequence parallelism" : "", ", ZeRO ", layout.zero_stage,
                ", micro-batch ", layout.micro_batch, " x ", layout.accumulation(job), ", ",
                pipeline::schedule_name(layout.schedule),
                layout.chunks > 1 ? concat(" (", layout.chunks, " chunks)") : "",
                layout.recompute > 0 ? concat(", recompute ", layout.recompute) : "", where("states", layout.states),
                where("parameters", layout.parameters));
}

std::vector<int64_t> recompute_intervals(const Job& job, int64_t pipe) {
  const activations::Options& activations = job.base.activations;
  if (activations.policy) {
    return {pipe > 1 && activations::recomputes(*activations.policy) ? 1 : 0};
  }
  if (activations.automatic || (pipe > 1 && !activations.choices.empty())) {
    return {0};
  }
  return {0, 1};
}

std::string why_impossible(const Job& job, const Layout& layout) {
  const models::TransformerShape& model = job.model;
  if (model.heads % layout.tensor != 0) {
    return does_not_divide("heads", model.heads, "tensor", layout.tensor);
  }
  if (model.vocab_size < layout.tensor) {
    return concat("vocabulary ", model.vocab_size, " is smaller than tensor ", layout.tensor);
  }
  if (const auto conflict = find_conflict(job, layout, /*on_gpu=*/false)) {
    return conflict->what;
  }
  const bool ring = job.context_kind == context::Kind::ring;
  const int64_t pieces =
      layout.context == 1 ? 1 : (ring ? 2 : 1) * layout.context; // zig-zag: a piece from the begin and one from the end
  if (model.sequence_length % pieces != 0) {
    return ring ? concat("sequence ", model.sequence_length, " cannot be divided into ", pieces,
                         " pieces, two for each of context ", layout.context)
                : does_not_divide("sequence", model.sequence_length, "context", layout.context);
  }
  if (!ring && model.heads / layout.tensor % layout.context != 0) {
    return does_not_divide("heads of a tensor rank", model.heads / layout.tensor, "context", layout.context);
  }
  if (layout.sequence_parallel && model.sequence_length / layout.context % layout.tensor != 0) {
    return does_not_divide("sequence of a context rank", model.sequence_length / layout.context, "tensor",
                           layout.tensor);
  }
  if (job.batch % layout.data != 0) {
    return does_not_divide("batch", job.batch, "data", layout.data);
  }
  if (job.batch / layout.data % layout.micro_batch != 0) {
    return does_not_divide("batch of a replica", job.batch / layout.data, "micro-batch", layout.micro_batch);
  }
  if (layout.pipe * layout.chunks > layers_of(job)) {
    return concat("pipe ", layout.pipe, layout.chunks > 1 ? concat(" x ", layout.chunks, " chunks") : "",
                  " is more than the ", layers_of(job), " layers");
  }
  if (static_cast<double>(layout.accumulation(job)) * static_cast<double>(layout.pipe * layout.chunks) >
      static_cast<double>(pipeline::kMostForwards)) {
    return concat(layout.accumulation(job), " micro-batches on ", layout.pipe * layout.chunks,
                  layout.pipe * layout.chunks == 1 ? " part" : " parts", " of the model are more than ",
                  pipeline::kMostForwards, " forwards in a step");
  }
  return "";
}

pipeline::ScheduleShape shape_of(const Job& job, const Layout& layout) {
  return {static_cast<int>(layout.pipe), static_cast<int>(layout.accumulation(job)), static_cast<int>(layout.chunks)};
}

pipeline::ScheduleKind schedule_of(const Layout& layout) {
  return layout.pipe == 1 ? pipeline::ScheduleKind::naive : layout.schedule;
}

const std::vector<std::vector<int64_t>>& Shared::in_flight(pipeline::ScheduleKind kind,
                                                           const pipeline::ScheduleShape& shape) {
  const pipeline::ScheduleShape few = fewer_micro_batches(kind, shape);
  auto& found = in_flight_[{static_cast<int>(kind), few.stages, few.micro_batches, few.chunks}];
  if (found.empty()) {
    for (const pipeline::Program& program : pipeline::make_programs(kind, few)) {
      found.push_back(pipeline::most_in_flight(program, few.chunks));
    }
  }
  return found;
}

const std::vector<pipeline::HeldMicroBatches>& Shared::most_held(const pipeline::ScheduleShape& shape) {
  const pipeline::ScheduleShape few = fewer_micro_batches(pipeline::ScheduleKind::zero_bubble, shape);
  auto& found = most_held_[{few.stages, few.micro_batches}];
  if (found.empty()) {
    for (const pipeline::Program& program : pipeline::make_programs(pipeline::ScheduleKind::zero_bubble, few)) {
      found.push_back(pipeline::most_held(program));
    }
  }
  return found;
}

const std::vector<estimate::Run::Programs>& Shared::programs(pipeline::ScheduleKind kind,
                                                             const pipeline::ScheduleShape& shape) {
  const bool whole = fewer_micro_batches(kind, shape) == shape;
  const int beyond =
      whole ? shape.micro_batches : -1 - shape.micro_batches % shape.stages; // of many only the remainder matters
  auto& found = programs_[{static_cast<int>(kind), shape.stages, beyond, shape.chunks}];
  if (found.empty()) {
    found = programs_of(kind, shape);
  }
  return found;
}

const std::vector<int64_t>& Shared::bounds(const Layout& layout) {
  const int64_t parts = layout.pipe * layout.chunks;
  auto& found = bounds_[{parts, layout.tensor}];
  if (found.empty()) {
    const std::string method = job_.partition == "uniform" ? "uniform" : "parameters";
    found = pipeline::partition_bounds(pipeline::layer_costs(estimate::sizes_of(model_of(job_, layout)), method),
                                       method, parts);
  }
  return found;
}

// Making programs takes longer than simulating them, so up to 64 MB of them are kept.
const std::vector<pipeline::Program>& Shared::schedules(pipeline::ScheduleKind kind,
                                                        const pipeline::ScheduleShape& shape) {
  constexpr size_t kMostInstructions = (64 << 20) / sizeof(pipeline::Instruction);
  const std::array<int, 4> key = {static_cast<int>(kind), shape.stages, shape.micro_batches, shape.chunks};
  if (const auto found = schedules_.find(key); found != schedules_.end()) {
    return found->second;
  }
  std::vector<pipeline::Program> programs = pipeline::make_programs(kind, shape);
  size_t instructions = 0;
  for (const pipeline::Program& program : programs) {
    instructions += program.size();
  }
  if (instructions_ + instructions > kMostInstructions) {
    schedules_.clear();
    instructions_ = 0;
  }
  instructions_ += instructions;
  return schedules_[key] = std::move(programs);
}

const pipeline::Timeline& Shared::timeline(const Layout& layout, const pipeline::Costs& costs) {
  Layout same = layout;
  same.zero_stage = 0;
  same.states = same.parameters = offload::Place::device;
  if (last_costs_.empty() || !(same == last_layout_) || last_costs_ != costs.parts) {
    const pipeline::ScheduleShape shape = shape_of(job_, layout);
    last_ = pipeline::simulate(schedules(schedule_of(layout), shape), shape, costs);
    last_layout_ = same;
    last_costs_ = costs.parts;
  }
  return last_;
}

const activations::Choice& Shared::choice(const std::vector<double>& key, const activations::Problem& problem) {
  const auto [found, is_new] = choices_.try_emplace(key);
  if (is_new) {
    found->second = activations::choose(problem);
  }
  return found->second;
}

estimate::Model model_of(const Job& job, const Layout& layout, int64_t blocks) {
  models::TransformerShape model = job.model;
  model.layers = blocks > 0 ? blocks : model.layers;
  estimate::Conditions conditions;
  conditions.samples = layout.micro_batch;
  conditions.type = job.base.precision.compute;
  conditions.autocast = job.base.precision.autocast;
  conditions.fp16 = job.base.precision.compute == precision::Type::fp16 ||
                    (job.base.precision.autocast && job.base.precision.autocast_type == precision::Type::fp16);
  conditions.fp8 = job.base.precision.fp8.enabled;
  conditions.on_gpu = job.base.on_device;
  conditions.layer_list = layout.is_layer_list();
  conditions.tensor_ranks = layout.tensor;
  conditions.context_ranks = layout.context;
  conditions.context_kind = job.context_kind;
  conditions.sequence_parallel = layout.sequence_parallel;
  estimate::Model out = estimate::transformer(model, conditions);
  if (blocks == 0) {
    mark_trained(job, out);
  }
  return out;
}

estimate::Run run_of_layers(const Job& job, const Layout& layout, int64_t blocks) {
  estimate::Run run = job.base;
  run.layer_list = layout.is_layer_list();
  run.model = model_of(job, layout, blocks);
  run.bounds = {0, std::ssize(run.model.layers)};
  run.tensor_ranks = layout.tensor;
  run.sequence_parallel = layout.sequence_parallel;
  run.recompute_interval = layout.recompute;
  return run;
}

estimate::Run run_of(const Job& job, const Layout& layout, Shared& shared, bool on_device) {
  if (const std::string why = why_impossible(job, layout); !why.empty()) {
    throw Error("plan", why);
  }
  estimate::Run run = run_of_layers(job, layout);
  run.stages = layout.pipe;
  run.chunks = layout.chunks;
  run.data_ranks = layout.data;
  run.context_ranks = layout.context;
  run.zero.stage = layout.zero_stage;
  run.on_device = on_device;
  run.offload.optimizer.place = layout.states;
  run.offload.parameters.place = layout.parameters;
  if (layout.states == offload::Place::nvme) {
    run.offload.optimizer.pipeline_read = run.offload.optimizer.pipeline_write = true;
  }
  run.micro_batch = layout.micro_batch;
  run.accumulation = layout.accumulation(job);
  run.splits_backward = schedule_of(layout) == pipeline::ScheduleKind::zero_bubble;
  run.bounds = shared.bounds(layout);
  run.in_flight = shared.in_flight(schedule_of(layout), shape_of(job, layout));
  if (run.splits_backward) {
    run.most_held = shared.most_held(shape_of(job, layout));
  }
  if (run.stages > 1 && run.shards(3)) {
    run.programs = shared.programs(schedule_of(layout), shape_of(job, layout));
  }
  return run;
}

} // namespace trireme::plan
