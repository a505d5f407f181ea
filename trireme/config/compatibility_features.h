#pragma once

#include <trireme/base/error.h>
#include <trireme/config/compatibility.h>
#include <trireme/config/run_file.h>

#include <algorithm>

// The features that compatibility_table.cpp names in its rows: name, keys, and whether a setting uses them.

namespace trireme::config {
namespace {

using offload::Place;
using Algorithm = parallel::DataParallelOptions::Algorithm;

template <class Rule>
bool uses(const Setting& s) {
  return s.engine.optimizer && std::holds_alternative<Rule>(s.engine.optimizer->rule);
}

std::string zero_stage(const Setting& s) {
  return concat("ZeRO stage ", s.engine.zero.stage);
}

std::string replica_ranks(const Setting& s) {
  return concat("a replica of ", s.replica_ranks, " ranks");
}

// Masters and states that leave a GPU. A program's own state_store may support more than ours.
bool leaves_gpu(const Setting& s) {
  return !s.device.empty() && !(s.program && s.program->state_store);
}

bool is_model(const Setting& s, ModelConfig::Kind kind) {
  return s.run != nullptr && s.run->model.kind == kind;
}

bool is_data(const Setting& s, data::DataOptions::Kind kind) {
  return s.run != nullptr && s.run->data.kind == kind;
}

bool is_windows(const Setting& s) {
  using Kind = data::DataOptions::Kind;
  return is_data(s, Kind::tokens) || is_data(s, Kind::text) || is_data(s, Kind::json_lines) ||
         is_data(s, Kind::mixture);
}

bool is_bert(const Setting& s, models::BertOptions::Head head) {
  return is_model(s, ModelConfig::Kind::bert) && s.run->model.bert.head == head;
}

// A program's model type that lacks a trait.
bool lacks(const Setting& s, bool ModelTraits::* trait) {
  return is_model(s, ModelConfig::Kind::of_program) && !(s.run->model.traits.*trait);
}

std::string type_of_program(const Setting& s) {
  return concat("the program's model type \"", s.run->model.type, '"');
}

// How ranks synchronize one model.
constexpr Feature kAveraging{"parameter_averaging", "parallel.sync engine.parameter_averaging",
                             [](const Setting& s) { return s.engine.averaging.on(); }};
constexpr Feature kElastic{"elastic parameter_averaging", "parallel.sync.elastic engine.parameter_averaging.elastic",
                           [](const Setting& s) { return s.engine.averaging.on() && s.engine.averaging.elastic; }};
constexpr Feature kServers{"parameter servers", "parallel.sync.kind",
                           [](const Setting& s) { return s.engine.server.on(); }};
constexpr Feature kSparseRows{"sparse_rows", "parallel.sync.sparse_rows", [](const Setting& s) {
                                return s.engine.server.on() && !s.engine.server.sparse_rows.empty();
                              }};
constexpr Feature kOneBitAdam{"OneBitAdam", "engine.optimizer.type", uses<optim::OneBitAdamOptions>};
constexpr Feature kOneBitLamb{"OneBitLamb", "engine.optimizer.type", uses<optim::OneBitLambOptions>};
constexpr Feature kZeroOneAdam{"ZeroOneAdam", "engine.optimizer.type", uses<optim::ZeroOneAdamOptions>};
constexpr Feature kLocalSteps{
    "ZeroOneAdam with local_step_clipper above 1", "engine.optimizer.params.local_step_clipper engine.optimizer",
    [](const Setting& s) {
      return uses<optim::ZeroOneAdamOptions>(s) &&
             std::get<optim::ZeroOneAdamOptions>(s.engine.optimizer->rule).local_step_clipper > 1;
    },
    [](const Setting&) -> std::string { return "ZeroOneAdam"; }};
constexpr Feature kCompression{"gradient_compression", "engine.gradient_compression",
                               [](const Setting& s) { return s.engine.compression.on(); }};
constexpr Feature kOwnSync{"InitializeOptions::sync of its own", "",
                           [](const Setting& s) { return s.program && s.program->own_sync; },
                           [](const Setting&) -> std::string { return "a sync of its own"; }};
constexpr Feature kNoReplica{"a program without replica_sync()", "",
                             [](const Setting& s) { return s.program && !s.program->replica; }};
constexpr Feature kNoWorker{"a program without worker_sync()", "",
                            [](const Setting& s) { return s.program && !s.program->server_worker; }};

// How gradients are reduced.
constexpr Feature kAlgorithm{"gradient_allreduce_algorithm", "engine.gradient_allreduce_algorithm",
                             [](const Setting& s) { return s.engine.data_parallel.algorithm != Algorithm::backend; },
                             [](const Setting& s) {
                               const auto algorithm = static_cast<size_t>(s.engine.data_parallel.algorithm);
                               return concat("gradient_allreduce_algorithm \"",
                                             parallel::DataParallelOptions::kAlgorithmNames[algorithm], '"');
                             }};
constexpr Feature kOtherSums{"gradient_allreduce_op, prescale_gradients or gradient_predivide_factor",
                             "engine.gradient_allreduce_op engine.prescale_gradients engine.gradient_predivide_factor",
                             [](const Setting& s) {
                               const parallel::DataParallelOptions& data = s.engine.data_parallel;
                               return data.op != parallel::DataParallelOptions::Op::mean || data.prescale_gradients ||
                                      data.gradient_predivide_factor != 1;
                             }};
constexpr Feature kCommunicationType{"communication_data_type", "engine.communication_data_type",
                                     [](const Setting& s) { return s.engine.precision.communication.has_value(); }};
constexpr Feature kSyncBatchNorm{"sync_batch_norm", "engine.sync_batch_norm",
                                 [](const Setting& s) { return s.engine.data_parallel.sync_batch_norm; }};
constexpr Feature kGpu{"a GPU", "training.device", [](const Setting& s) { return !s.device.empty(); },
                       [](const Setting& s) { return concat("gradients on ", s.device); }};

// ZeRO and offload.
constexpr Feature kZero{"ZeRO stage 1 to 3", "engine.zero_optimization.stage",
                        [](const Setting& s) { return s.engine.zero.stage >= 1; }, zero_stage};
constexpr Feature kZero2{"ZeRO stage 2 or 3", "engine.zero_optimization.stage",
                         [](const Setting& s) { return s.engine.zero.stage >= 2; }, zero_stage};
constexpr Feature kBelowZero3{"ZeRO stage 0 to 2", "engine.zero_optimization.stage",
                              [](const Setting& s) { return s.engine.zero.stage < 3; }, zero_stage};
constexpr Feature kShardSize{"zero_optimization.mics_shard_size", "engine.zero_optimization.mics_shard_size",
                             [](const Setting& s) { return s.engine.zero.shard_size.has_value(); }};
constexpr Feature kOffloadParam{"offload_param", "engine.zero_optimization.offload_param",
                                [](const Setting& s) { return s.engine.offload.parameters.place != Place::device; }};
constexpr Feature kOffloadOptimizer{"offload_optimizer", "engine.zero_optimization.offload_optimizer",
                                    [](const Setting& s) { return s.engine.offload.optimizer.place != Place::device; }};
constexpr Feature kStatesLeaveGpu{"offload_optimizer on a GPU", kOffloadOptimizer.keys,
                                  [](const Setting& s) { return leaves_gpu(s) && kOffloadOptimizer.is_on(s); },
                                  [](const Setting& s) { return concat("offload_optimizer on ", s.device); }};
constexpr Feature kStatesStay{"optimizer states on the GPU", kOffloadOptimizer.keys,
                              [](const Setting& s) { return leaves_gpu(s) && !kOffloadOptimizer.is_on(s); }};
constexpr Feature kParametersLeaveGpu{"offload_param on a GPU", kOffloadParam.keys,
                                      [](const Setting& s) { return leaves_gpu(s) && kOffloadParam.is_on(s); },
                                      [](const Setting&) -> std::string { return "offload_param"; }};
constexpr Feature kDelayed{"delayed_update", "engine.zero_optimization.offload_optimizer.delayed_update",
                           [](const Setting& s) { return s.engine.offload.optimizer.delayed_update; }};
constexpr Feature kDelayedOnGpu{"delayed_update on a GPU", kDelayed.keys,
                                [](const Setting& s) { return leaves_gpu(s) && kDelayed.is_on(s); },
                                [](const Setting&) -> std::string { return "delayed_update"; }};
constexpr Feature kRatio{
    "an offload_optimizer.ratio below 1 on a GPU", "engine.zero_optimization.offload_optimizer.ratio",
    [](const Setting& s) { return kStatesLeaveGpu.is_on(s) && s.engine.offload.optimizer.ratio < 1; },
    [](const Setting&) -> std::string { return "a ratio below 1"; }};
constexpr Feature kStateStore{"InitializeOptions::state_store", "",
                              [](const Setting& s) { return s.program && s.program->state_store; },
                              [](const Setting&) -> std::string { return "a state_store"; }};

// The optimizer and its step.
constexpr Feature kLamb{"LAMB", "engine.optimizer.type",
                        [](const Setting& s) { return s.engine.optimizer_or_adamw().needs_norms(); }};
constexpr Feature kSmallMoments{
    "moments in bf16 or int8", "engine.optimizer.params.state_dtype engine.bf16.bf16_optimizer_states",
    [](const Setting& s) { return s.engine.optimizer && s.engine.optimizer->state_type != optim::StateType::fp32; },
    [](const Setting& s) { return concat("moments in ", optim::name(s.engine.optimizer->state_type)); }};
constexpr Feature kInt8States{"8-bit optimizer states", "engine.optimizer.params.state_dtype", [](const Setting& s) {
                                return s.engine.optimizer_or_adamw().state_type == optim::StateType::int8;
                              }};
constexpr Feature kStepInBackward{"step_in_backward", "engine.step_in_backward",
                                  [](const Setting& s) { return s.engine.step_in_backward; }};
constexpr Feature kClipping{"gradient_clipping", "engine.gradient_clipping", [](const Setting& s) {
                              const bool has_default =
                                  s.run != nullptr || s.program; // a torch optimizer is not clipped
                              return s.engine.gradient_clipping.value_or(has_default ? s.engine.clipping() : 0) > 0;
                            }};
constexpr Feature kOverflow{
    "the look for NaN in fp16 and bf16 gradients (bf16.check_grad_overflow)",
    "engine.bf16.check_grad_overflow engine.fp16.enabled engine.bf16.enabled", [](const Setting& s) {
      const precision::PrecisionOptions& precision = s.engine.precision;
      return precision.scales_loss() || (precision.compute == precision::Type::bf16 && precision.check_grad_overflow);
    }};
constexpr Feature kFp16{"fp16", "engine.fp16.enabled engine.torch_autocast.dtype",
                        [](const Setting& s) { return s.engine.precision.scales_loss(); }};
constexpr Feature kFp8{"fp8", "engine.fp8.enabled", [](const Setting& s) { return s.engine.precision.fp8.enabled; }};
constexpr Feature kNotBf16{
    "products in fp32 or fp16", "engine.fp16.enabled engine.torch_autocast.dtype engine.bf16.enabled engine",
    [](const Setting& s) {
      return s.engine.precision.product_type() != precision::Type::bf16 && !s.engine.precision.bf16_if_faster;
    },
    [](const Setting& s) { return concat("products in ", precision::type_name(s.engine.precision.product_type())); }};
constexpr Feature kScheduler{"scheduler", "engine.scheduler", [](const Setting& s) {
                               return s.engine.schedule.kind != optim::ScheduleOptions::Kind::constant;
                             }};
constexpr Feature kOptimizer{"optimizer", "engine.optimizer",
                             [](const Setting& s) { return s.engine.optimizer.has_value(); }};
constexpr Feature kTorchOptimizer{"InitializeOptions::optimizer", "",
                                  [](const Setting& s) { return s.program && s.program->optimizer; },
                                  [](const Setting&) -> std::string { return "a torch optimizer"; }};
constexpr Feature kParameterGroups{"InitializeOptions::parameter_groups", "",
                                   [](const Setting& s) { return s.program && s.program->parameter_groups; },
                                   [](const Setting&) -> std::string { return "parameter_groups"; }};
constexpr Feature kLr{"InitializeOptions::lr", "", [](const Setting& s) { return s.program && s.program->lr; },
                      [](const Setting&) -> std::string { return "a function for the lr"; }};

// The layout, and how the model is split.
constexpr Feature kContext{"context ranks", "parallel.context", [](const Setting& s) { return s.context > 1; },
                           [](const Setting& s) { return concat(s.context, " context ranks"); }};
constexpr Feature kRing{"ring attention over context ranks", "parallel.context_kind parallel.context",
                        [](const Setting& s) {
                          return s.run != nullptr && s.context > 1 &&
                                 s.run->parallel.context_kind == context::Kind::ring;
                        },
                        [](const Setting& s) { return concat("ring attention over ", s.context, " context ranks"); }};
constexpr Feature kSequenceParallel{"sequence_parallel", "parallel.sequence_parallel",
                                    [](const Setting& s) { return s.sequence_parallel && s.tensor > 1; }};
constexpr Feature kTensor{"tensor ranks", "parallel.tensor", [](const Setting& s) { return s.tensor > 1; },
                          [](const Setting& s) { return concat(s.tensor, " tensor ranks"); }};
constexpr Feature kSplitLayers{
    "layers split among tensor ranks", "parallel.tensor engine.tensor_parallel",
    [](const Setting& s) { return s.engine.tensor_parallel.size > 1 || (!s.program && s.tensor > 1); }, kTensor.said};
constexpr Feature kStages{"pipeline stages", "parallel.pipe engine.pipeline.stages",
                          [](const Setting& s) { return s.pipe > 1; },
                          [](const Setting& s) { return concat("a pipeline of ", s.pipe, " stages"); }};
constexpr Feature kReplicaRanks{"replicas of several ranks", "parallel.pipe parallel.context parallel.tensor",
                                [](const Setting& s) { return s.replica_ranks > 1; }, replica_ranks};
constexpr Feature kPlacement{"InitializeOptions::reduce_groups or placement", "",
                             [](const Setting& s) { return s.program && s.program->placement; },
                             [](const Setting&) -> std::string { return "reduce_groups or a placement"; }};
constexpr Feature kTensorParallel{"engine.tensor_parallel",
                                  "engine.tensor_parallel.autotp_size engine.tensor_parallel.tp_size",
                                  [](const Setting& s) { return s.engine.tensor_parallel.size > 1; },
                                  [](const Setting&) -> std::string { return "tensor_parallel"; }};
constexpr Feature kPipelineModule{"a PipelineModule", "",
                                  [](const Setting& s) { return s.program && s.program->pipeline; },
                                  [](const Setting&) -> std::string { return "a pipeline"; }};
constexpr Feature kWholeSequences{"InitializeOptions::sequence_parallel", "",
                                  [](const Setting& s) { return s.program && s.sequence_parallel; }};
constexpr Feature kModelInOnePiece{"a model in one piece", "",
                                   [](const Setting& s) { return s.program && !s.program->pipeline; }};
constexpr Feature kPipelineKeys{"pipeline.stages, activation_checkpoint_interval or seed_layers", "engine.pipeline",
                                [](const Setting& s) {
                                  const pipeline::PipelineKeys& keys = s.engine.pipeline;
                                  return keys.stages.value_or(1) > 1 ||
                                         keys.activation_checkpoint_interval.value_or(0) > 0 ||
                                         keys.seed_layers.value_or(false);
                                },
                                [](const Setting& s) -> std::string {
                                  const pipeline::PipelineKeys& keys = s.engine.pipeline;
                                  return keys.stages.value_or(1) > 1 ? "\"pipeline\": {\"stages\"}"
                                         : keys.activation_checkpoint_interval.value_or(0) > 0
                                             ? "\"pipeline\": {\"activation_checkpoint_interval\"}"
                                             : "\"pipeline\": {\"seed_layers\"}";
                                }};

// A run file's model and data.
constexpr Feature kLanguage{"a run file's gpt or llama", "model.type",
                            [](const Setting& s) { return s.run != nullptr && s.run->model.is_language(); },
                            [](const Setting& s) -> std::string { return concat("a ", s.run->model.type); }};
constexpr Feature kWindow{
    "a window shorter than the samples", "model.window model.from",
    [](const Setting& s) {
      return is_model(s, ModelConfig::Kind::llama) && s.run->model.llama.window > 0 &&
             s.run->model.llama.window < s.run->data.sequence_length;
    },
    [](const Setting& s) { return concat("a window of ", s.run->model.llama.window, " tokens"); }};
constexpr Feature kBert{"a run file's bert", "model.type",
                        [](const Setting& s) { return is_model(s, ModelConfig::Kind::bert); },
                        [](const Setting&) -> std::string { return "a bert"; }};
constexpr Feature kMaskedBert{"a run file's bert with the head masked_lm", "model.head model.type",
                              [](const Setting& s) { return is_bert(s, models::BertOptions::Head::masked_lm); },
                              [](const Setting&) -> std::string { return "a bert with the head masked_lm"; }};
constexpr Feature kClassesBert{"a run file's bert with the head classes", "model.head",
                               [](const Setting& s) { return is_bert(s, models::BertOptions::Head::classes); },
                               [](const Setting&) -> std::string { return "a bert with the head classes"; }};
constexpr Feature kCnn{"a run file's cnn", "model.type",
                       [](const Setting& s) { return is_model(s, ModelConfig::Kind::cnn); },
                       [](const Setting&) -> std::string { return "a cnn"; }};
constexpr Feature kAlexNet{"a run file's alexnet", "model.type",
                           [](const Setting& s) { return is_model(s, ModelConfig::Kind::alexnet); },
                           [](const Setting&) -> std::string { return "an alexnet"; }};
constexpr Feature kOfProgram{"a model type of a program", "model.type",
                             [](const Setting& s) { return is_model(s, ModelConfig::Kind::of_program); },
                             type_of_program};
constexpr Feature kOnePieceType{"a model type of a program that gives no layers", "model.type",
                                [](const Setting& s) { return lacks(s, &ModelTraits::layers); }, type_of_program};
constexpr Feature kNoTensorType{"a model type of a program without ModelType::tensor", "model.type",
                                [](const Setting& s) { return lacks(s, &ModelTraits::tensor); }, type_of_program};
constexpr Feature kNoContextType{"a model type of a program without ModelType::context", "model.type",
                                 [](const Setting& s) { return lacks(s, &ModelTraits::context); }, type_of_program};
constexpr Feature kImages{"data of type images", "data.type",
                          [](const Setting& s) { return is_data(s, data::DataOptions::Kind::images); }};
constexpr Feature kTokens{"data of type tokens, text, jsonl or mixture", "data.type", is_windows};
constexpr Feature kPack{"packed documents", "data.pack",
                        [](const Setting& s) { return s.run != nullptr && s.run->data.pack; }};
constexpr Feature kCudaGraph{"CUDA graphs of steps", "training.cuda_graph", [](const Setting& s) {
                               return s.run != nullptr && s.run->training.cuda_graph == CudaGraph::on;
                             }};
constexpr Feature kLossOnResponse{
    "loss_on \"response\"", "data.loss_on data.sets", [](const Setting& s) {
      const auto counts_some = [](const data::DataOptions& data) {
        return data.kind == data::DataOptions::Kind::json_lines && data.loss_on == data::LossOn::response;
      };
      return s.run != nullptr &&
             (counts_some(s.run->data) || std::ranges::any_of(s.run->data.sets, [&](const data::MixtureSet& set) {
                return counts_some(*set.data);
              }));
    }};
constexpr Feature kLabelled{"data of type labelled_text", "data.type",
                            [](const Setting& s) { return is_data(s, data::DataOptions::Kind::labelled_text); }};
constexpr Feature kLayerKeys{
    "seed_layers or activation_checkpoint_interval", "engine.pipeline", [](const Setting& s) {
      return s.run != nullptr && s.pipe == 1 &&
             (s.run->pipeline.activation_checkpoint_interval > 0 || s.run->pipeline.seed_layers);
    }};
constexpr Feature kSample{"training.sample", "training.sample",
                          [](const Setting& s) { return s.run != nullptr && s.run->training.sample; },
                          [](const Setting&) -> std::string { return "a sample"; }};
constexpr Feature kExport{"training.export", "training.export",
                          [](const Setting& s) { return s.run != nullptr && !s.run->training.export_to.empty(); },
                          [](const Setting&) -> std::string { return "an export"; }};
constexpr Feature kFreeze{"training.freeze", "training.freeze",
                          [](const Setting& s) { return s.run != nullptr && s.run->training.freeze.on(); },
                          [](const Setting&) -> std::string { return "frozen parameters"; }};
constexpr Feature kLora{"training.lora", "training.lora",
                        [](const Setting& s) { return s.run != nullptr && s.run->training.lora; },
                        [](const Setting&) -> std::string { return "adapters"; }};
constexpr Feature kAdapter{"model.adapter", "model.adapter",
                           [](const Setting& s) {
                             return s.run != nullptr && s.run->model.reads_tokens() &&
                                    !s.run->model.lora().init_from.empty();
                           },
                           [](const Setting&) -> std::string { return "adapters"; }};
constexpr Feature kNoTokenizer{"no data.tokenizer", "data",
                               [](const Setting& s) { return is_windows(s) && s.run->data.tokenizer.empty(); },
                               [](const Setting&) -> std::string { return "no tokenizer"; }};
constexpr Feature kEvaluation{"training.eval_every", "training.eval_every",
                              [](const Setting& s) { return s.run != nullptr && s.run->training.eval_every > 0; },
                              [](const Setting&) -> std::string { return "evaluation"; }};
constexpr Feature kNoValidation{"no validation data", "data", [](const Setting& s) {
                                  return s.run != nullptr && !s.run->data.has_validation() &&
                                         s.run->data.kind != data::DataOptions::Kind::of_program;
                                }};
constexpr Feature kValidationFraction{
    "data.validation_fraction", "data.validation_fraction",
    [](const Setting& s) { return s.run != nullptr && s.run->data.validation_fraction > 0; },
    [](const Setting&) -> std::string { return "a validation_fraction"; }};
constexpr Feature kValidation{"data.validation", "data.validation",
                              [](const Setting& s) { return s.run != nullptr && !s.run->data.validation.empty(); },
                              [](const Setting&) -> std::string { return "validation files"; }};

} // namespace
} // namespace trireme::config
