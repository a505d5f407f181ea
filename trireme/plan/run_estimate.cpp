#include <trireme/plan/run_estimate.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/parallel/pipeline/held.h>
#include <trireme/parallel/pipeline/layer_costs.h>
#include <trireme/parallel/pipeline/schedule.h>
#include <trireme/plan/estimate/activation_choice.h>
#include <trireme/plan/estimate/activations.h>
#include <trireme/plan/estimate/layouts.h>
#include <trireme/plan/estimate/moves.h>
#include <trireme/plan/estimate/what_stays.h>
#include <trireme/plan/programs.h>

#include <algorithm>

namespace trireme::plan {
namespace {

using config::BatchTriple;
using config::EngineConfig;
using config::ModelConfig;
using config::RunConfig;

using estimate::Run;

constexpr int64_t kTokenBytes = 8;
constexpr int64_t kStoredTokenBytes = 4;
constexpr int64_t kFloatBytes = 4;

estimate::Model trained_model_of(const RunConfig& run, int64_t samples, int64_t vocab_size, bool layer_list) {
  estimate::Conditions conditions;
  conditions.samples = samples;
  conditions.type = run.engine.precision.compute;
  conditions.autocast = run.engine.precision.autocast;
  conditions.fp16 = run.engine.precision.compute == precision::Type::fp16 ||
                    (run.engine.precision.autocast && run.engine.precision.autocast_type == precision::Type::fp16);
  conditions.fp8 = run.engine.precision.fp8.enabled;
  conditions.on_gpu = run.training.device.starts_with("cuda");
  conditions.layer_list = layer_list;
  conditions.tensor_ranks = run.parallel.tensor;
  conditions.context_ranks = run.parallel.context;
  conditions.context_kind = run.parallel.context_kind;
  conditions.sequence_parallel = run.parallel.sequence_parallel;
  if (run.model.kind == ModelConfig::Kind::cnn) {
    return estimate::cnn(run.model.cnn, conditions);
  }
  if (run.model.kind == ModelConfig::Kind::alexnet) {
    return estimate::alexnet(run.model.alexnet, conditions);
  }
  if (run.model.kind == ModelConfig::Kind::of_program) {
    if (!can_describe(run)) {
      throw InputError("estimate",
                       concat("the program says nothing of the layers of its model type \"", run.model.type,
                              "\": memory and traffic are unknown"),
                       "Set ModelType::describe where the type is registered (docs/own_model.md).");
    }
    return run.model.describe(conditions);
  }
  models::TransformerShape model = run.model.shape();
  model.vocab_size = model.vocab_size > 0 ? model.vocab_size : vocab_size;
  if (model.vocab_size == 0) {
    throw InputError("estimate", "the size of the vocabulary is unknown: the model takes it from its tokenizer",
                     "Set it: --set model.vocab_size=50257");
  }
  if (run.model.kind == ModelConfig::Kind::bert) {
    models::BertOptions bert = run.model.bert;
    bert.vocab_size = model.vocab_size;
    return estimate::bert(bert, run.data.sequence_length, conditions);
  }
  return estimate::transformer(model, conditions);
}

// The same with what "training.freeze" matches marked. A program's description may have other names than its model,
// which the ranks ask.
estimate::Model model_of(const RunConfig& run, int64_t samples, int64_t vocab_size, bool layer_list) {
  estimate::Model model = trained_model_of(run, samples, vocab_size, layer_list);
  if (!run.training.freeze.on()) {
    return model;
  }
  std::vector<estimate::Parameter*> parameters;
  std::vector<std::string> names;
  for (estimate::Layer& layer : model.layers) {
    for (estimate::Parameter& parameter : layer.parameters) {
      parameters.push_back(&parameter);
      names.push_back(concat(layer.name, '.', parameter.name));
    }
  }
  const std::vector<bool> frozen = run.model.kind == ModelConfig::Kind::of_program
                                       ? config::frozen_among(run.training.freeze, names)
                                       : config::frozen_of_all(run.training.freeze, names);
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i]->trained = !frozen[i];
  }
  return model;
}

void count_parameters(const RunConfig& run, int64_t vocab_size, RunEstimate& out) {
  estimate::Model whole;
  if (out.run.tensor_ranks > 1) {
    RunConfig one = run;
    one.parallel.tensor = one.parallel.context = 1;
    whole = model_of(one, 1, vocab_size, out.run.layer_list);
  }
  const estimate::Model& model = out.run.tensor_ranks > 1 ? whole : out.run.model;
  out.parameters = model.parameters();
  out.trained = model.trained_parameters();
  if (run.training.freeze.on() && out.trained == out.parameters) {
    out.notes.push_back(
        "training.freeze matches no name in the program's description of its model (ModelType::describe): everything "
        "is counted as trained");
  }
}

void note_compression(const EngineConfig& engine, RunEstimate& out) {
  if (std::holds_alternative<optim::ZeroOneAdamOptions>(engine.optimizer_or_adamw().rule)) {
    out.notes.push_back(
        "ZeroOneAdam: most steps up to var_freeze_step are compressed ones; after it only averaging steps send "
        "anything");
  }
}

std::vector<int64_t> bounds_of(const RunConfig& run, const estimate::Model& model, int64_t parts,
                               std::vector<std::string>& notes) {
  std::string method = run.pipeline.partition;
  if (method == "profile" || method == "memory") {
    notes.push_back(
        concat("partition \"", method, "\" measures layers at the start; the estimate cuts them by parameters"));
    method = "parameters";
  }
  const std::vector<double> costs = pipeline::layer_costs(estimate::sizes_of(model), method);
  return pipeline::partition_bounds(costs, method, parts, run.pipeline.allow_empty_stages);
}

void set_pipeline(const RunConfig& run, RunEstimate& out) {
  const pipeline::PipelineOptions& options = run.pipeline;
  Run& e = out.run;
  e.chunks = e.stages > 1 ? options.chunks : 1;
  e.activations = run.engine.activations;
  e.recompute_interval = e.layer_list ? options.activation_checkpoint_interval : 0;
  if (e.layer_list && e.activations.policy) {
    e.recompute_interval =
        activations::recomputes(*e.activations.policy) ? std::max<int64_t>(1, e.recompute_interval) : 0;
  }
  if (e.activations.automatic && e.tensor_ranks * e.context_ranks > 1) {
    out.notes.push_back(
        "activation_checkpointing.policy is auto: messages of recomputed layers to tensor and context ranks, which are "
        "sent twice, are counted once");
  }
  if (e.stages == 1) {
    e.bounds = {0, std::ssize(e.model.layers)};
    e.in_flight = {{1}};
    return;
  }
  e.bounds = bounds_of(run, e.model, e.stages * e.chunks, out.notes);
  const pipeline::ScheduleShape shape{static_cast<int>(e.stages), static_cast<int>(e.accumulation),
                                      static_cast<int>(e.chunks)};
  e.splits_backward = options.schedule == pipeline::ScheduleKind::zero_bubble;
  e.in_flight.clear();
  for (const pipeline::Program& program : pipeline::make_programs(options.schedule, shape)) {
    e.in_flight.push_back(pipeline::most_in_flight(program, shape.chunks));
    if (e.splits_backward) {
      e.most_held.push_back(pipeline::most_held(program));
    }
  }
  if (e.shards(3)) {
    e.programs = programs_of(options.schedule, shape);
  }
}

void set_offload(const RunConfig& run, RunEstimate& out) {
  out.run.on_device = run.training.device.starts_with("cuda");
  const auto note = [&](const char* section, offload::Place place) {
    if (place == offload::Place::host && !out.run.on_device) {
      out.notes.push_back(
          concat(section, " to the host has no effect for ranks on the CPU; for a GPU: --set training.device=cuda"));
    }
  };
  note("offload_optimizer", run.engine.offload.optimizer.place);
  note("offload_param", run.engine.offload.parameters.place);
}

// Notes on defaults that keep data out of files.
void note_offload(RunEstimate& out) {
  const Run& e = out.run;
  if (!e.moves_parameters() && !e.moves_states()) {
    return;
  }
  const bool has_units = e.layer_list || std::any_of(e.model.layers.begin(), e.model.layers.end(),
                                                     [](const estimate::Layer& layer) { return layer.is_unit; });
  if (e.moves_parameters() && !has_units) {
    out.notes.push_back("offload_param moves nothing: the model is in one piece, and none of its modules is sharded");
  }
  estimate::Elsewhere most; // of the stage that has most
  for (int64_t stage = 0; stage < e.stages; ++stage) {
    const bucket::FlatLayout trained = estimate::layout_of(e, stage);
    const bucket::FlatLayout frozen = estimate::frozen_layout_of(e, stage);
    const estimate::Elsewhere there = estimate::elsewhere_of(e, {&trained}, {&frozen});
    if (there.elements + there.parameters >= most.elements + most.parameters) {
      most = there;
    }
  }
  for (std::string& note : estimate::what_stays(e, most)) {
    if (has_units || most.parameters > 0 || note.find("offload_param") == std::string::npos) {
      out.notes.push_back(std::move(note));
    }
  }
}

int64_t size_of(const std::vector<std::filesystem::path>& files) {
  int64_t bytes = 0;
  for (const auto& file : files) {
    std::error_code error;
    const auto size = std::filesystem::file_size(file, error);
    bytes += error ? 0 : static_cast<int64_t>(size);
  }
  return bytes;
}

// Texts with labels are in memory as 32-bit tokens, which a byte-level BPE makes of about four bytes. Files of tokens,
// and the tokens of other texts, are mapped: their pages belong to the system.
int64_t data_bytes(const RunConfig& run, const Run& e) {
  if (run.data.kind == data::DataOptions::Kind::of_program) {
    return 0; // unknown
  }
  const int64_t batches = run.data.prefetch + 2;
  if (run.data.kind == data::DataOptions::Kind::images) {
    const bool alexnet = run.model.kind == ModelConfig::Kind::alexnet;
    const models::CnnOptions& cnn = run.model.cnn;
    const int64_t side = alexnet ? run.model.alexnet.resize : cnn.side; // an alexnet's images are enlarged to it
    return size_of(run.data.train) + size_of(run.data.validation) +
           batches * e.micro_batch * kFloatBytes * (alexnet ? run.model.alexnet.channels : cnn.channels) * side * side;
  }
  const int64_t batch = batches * e.micro_batch * 2 * kTokenBytes * run.data.sequence_length;
  if (run.data.kind != data::DataOptions::Kind::labelled_text) {
    return batch;
  }
  const int64_t text = size_of(run.data.train) + size_of(run.data.validation);
  return batch + kStoredTokenBytes * (run.data.tokenizer == "bytes" ? text : text / 4);
}

// The check that ranks make in their first steps.
void check_choices(const Run& e) {
  if (const std::string why = estimate::why_other_parts(e); !why.empty()) {
    throw InputError("activations", why,
                     e.activations.choices.empty()
                         ? "Name one of them, or remove layers to treat all of them."
                         : "List a policy for every part, as a run with \"policy\": \"auto\" prints them.");
  }
}

// Checks the budget in bf16 if allowed, which needs less.
void check_budget(const RunConfig& run, int64_t vocab_size, Run e) {
  if (e.activations.automatic && run.engine.precision.bf16_if_faster) {
    RunConfig in_bf16 = run;
    in_bf16.engine.precision.compute = precision::Type::bf16;
    e.model = model_of(in_bf16, e.micro_batch, vocab_size, e.layer_list);
  }
  if (const auto why = estimate::why_no_choice(e)) {
    throw InputError("activations", why->what, why->next);
  }
}

} // namespace

bool can_describe(const RunConfig& run) {
  if (run.model.kind == ModelConfig::Kind::alexnet) {
    return run.model.alexnet.resize > 0;
  }
  return run.model.kind != ModelConfig::Kind::of_program || run.model.describe;
}

std::string note_on_absent_data(const RunConfig& run) {
  using Kind = data::DataOptions::Kind;
  if (run.data.kind == Kind::tokens || run.data.kind == Kind::text || run.data.kind == Kind::json_lines ||
      run.data.kind == Kind::mixture) {
    // Mapped files do not count.
    return "";
  }
  std::vector<std::string> missing;
  for (const auto* files :
       {&run.data.train, &run.data.train_labels, &run.data.validation, &run.data.validation_labels}) {
    for (const auto& file : *files) {
      if (std::find(run.absent_files.begin(), run.absent_files.end(), file) != run.absent_files.end()) {
        missing.push_back(file.string());
      }
    }
  }
  return missing.empty() ? ""
                         : concat("there is no file ", join(missing, ", "), ": ", missing.size() == 1 ? "its" : "their",
                                  " content is not counted in memory");
}

void set_engine(const EngineConfig& engine, estimate::Run& out) {
  out.zero = engine.zero;
  out.zero.shard_size.reset(); // until the number of ranks is known
  out.precision = engine.precision;
  out.optimizer = engine.optimizer_or_adamw();
  out.data_parallel = engine.data_parallel;
  out.averaging = engine.averaging;
  out.compression = engine.compression;
  out.clips = engine.clipping() > 0;
  out.steps_in_backward = engine.step_in_backward;
  out.offload = engine.offload;
}

RunEstimate describe(const RunConfig& run, int64_t ranks, int64_t vocab_size) {
  RunEstimate out;
  Run& e = out.run;
  set_engine(run.engine, e);
  e.stages = run.parallel.pipe;
  e.layer_list = run.builds_layers();
  if (ranks < 1 || ranks % run.parallel.ranks_of_replica() != 0) {
    throw InputError("estimate", concat(ranks, " ranks cannot be divided among the ", run.parallel.ranks_of_replica(),
                                        " ranks of a replica (pipe * context * tensor)"));
  }
  e.data_ranks = ranks / run.parallel.ranks_of_replica();
  e.tensor_ranks = run.parallel.tensor;
  e.context_ranks = run.parallel.context;
  e.sequence_parallel = run.parallel.sequence_parallel && run.parallel.tensor > 1;
  const BatchTriple batch = run.engine.batch_for(e.data_ranks);
  e.micro_batch = batch.micro;
  e.accumulation = batch.accumulation;
  e.model = model_of(run, batch.micro, vocab_size, e.layer_list);
  count_parameters(run, vocab_size, out);
  set_offload(run, out);
  set_pipeline(run, out);

  if (run.engine.precision.bf16_if_faster) {
    out.notes.push_back(
        "bf16 is \"auto\": estimated in fp32, an upper bound; in bf16 activations and frozen weights need half");
  }
  if (const auto size = run.engine.zero.shard_size; size && e.zero.stage > 0 && *size != e.gradient_ranks()) {
    if (e.gradient_ranks() % *size != 0) {
      throw InputError(
          "estimate",
          concat("zero_optimization.mics_shard_size ", *size, " does not divide ", e.gradient_ranks(), " data ranks"),
          "Set it to a divisor of the number of data ranks.");
    }
    e.zero.shard_size = size;
  }
  note_compression(run.engine, out);
  using DataParallel = parallel::DataParallelOptions;
  if (const auto algorithm = run.engine.data_parallel.algorithm;
      algorithm != DataParallel::Algorithm::backend && e.gradient_ranks() > 1) {
    out.notes.push_back(concat("the traffic of gradients is that of the backend; gradient_allreduce_algorithm \"",
                               DataParallel::kAlgorithmNames[static_cast<size_t>(algorithm)],
                               "\" may send more from some ranks"));
  }
  if (e.averages() && e.averaging.start_step > 0) {
    out.notes.push_back(
        concat("traffic after step ", e.averaging.start_step, "; before it gradients are summed in every step"));
  }
  e.data_bytes = data_bytes(run, e);
  if (run.data.kind == data::DataOptions::Kind::of_program) {
    out.notes.push_back("the samples are made by the program: their memory is not counted");
  }
  if (std::string note = note_on_absent_data(run); !note.empty()) {
    out.notes.push_back(std::move(note));
  }
  check_choices(e);
  check_budget(run, vocab_size, e);
  note_offload(out);
  return out;
}

} // namespace trireme::plan
