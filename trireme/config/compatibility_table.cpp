#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/config/compatibility.h>
#include <trireme/config/run_file.h>

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
  return is_data(s, data::DataOptions::Kind::tokens) || is_data(s, data::DataOptions::Kind::text);
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
constexpr Feature kTokens{"data of type tokens or text", "data.type", is_windows};
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
constexpr Feature kNoTokenizer{"no data.tokenizer", "data",
                               [](const Setting& s) { return is_windows(s) && s.run->data.tokenizer.empty(); },
                               [](const Setting&) -> std::string { return "no tokenizer"; }};
constexpr Feature kEvaluation{"training.eval_every", "training.eval_every",
                              [](const Setting& s) { return s.run != nullptr && s.run->training.eval_every > 0; },
                              [](const Setting&) -> std::string { return "evaluation"; }};
constexpr Feature kNoValidation{"no validation data", "data", [](const Setting& s) {
                                  return s.run != nullptr && s.run->data.validation.empty() &&
                                         s.run->data.validation_fraction == 0 &&
                                         s.run->data.kind != data::DataOptions::Kind::of_program;
                                }};
constexpr Feature kValidationFraction{
    "data.validation_fraction", "data.validation_fraction",
    [](const Setting& s) { return s.run != nullptr && s.run->data.validation_fraction > 0; },
    [](const Setting&) -> std::string { return "a validation_fraction"; }};
constexpr Feature kValidation{"data.validation", "data.validation",
                              [](const Setting& s) { return s.run != nullptr && !s.run->data.validation.empty(); },
                              [](const Setting&) -> std::string { return "validation files"; }};

constexpr std::string_view kLeaveOut = "Leave one of them out.";

} // namespace

const std::vector<Incompatible>& incompatible_features() {
  static const std::vector<Feature> compressing = {kOneBitAdam, kOneBitLamb, kZeroOneAdam, kCompression};
  static const std::vector<Feature> alone = {kAveraging, kServers, kLocalSteps}; // replicas that step alone
  static const std::vector<Incompatible> table = {
      // The model and its data.
      {{kCnn, kAlexNet}, {kTokens, kLabelled}, "it learns from images", "Use data of type \"images\"."},
      {{kLanguage}, {kImages, kLabelled}, "it learns from tokens", "Use data of type \"tokens\" or \"text\"."},
      {{kMaskedBert},
       {kImages, kLabelled},
       "it learns from tokens",
       "Use data of type \"tokens\" or \"text\"; for \"labelled_text\" the head \"classes\"."},
      {{kClassesBert}, {kImages, kTokens}, "it learns from texts with labels", "Use data of type \"labelled_text\"."},
      {{kContext, kSequenceParallel},
       {kClassesBert},
       "this head needs all tokens of a sample on each rank",
       "Use one context rank and no sequence_parallel."},
      {{kRing}, {kWindow}, "ring attention knows no window", "Set parallel.context_kind to \"ulysses\"."},
      {{kTensorParallel},
       {kLanguage, kBert},
       "it splits a C++ program's own model; a run file's gpt, llama or bert splits its layers itself",
       "Leave engine.tensor_parallel out, and set parallel.tensor to the number of ranks that share each layer."},
      {{kTensorParallel}, {kCnn, kAlexNet}, "it splits a C++ program's own model", "Leave engine.tensor_parallel out."},
      {{kTensor, kContext}, {kCnn, kAlexNet}, "its layers cannot be split", "Use a gpt, or leave the key out."},
      {{kTensorParallel},
       {kOfProgram},
       "a type of a program splits its layers itself",
       "Leave engine.tensor_parallel out, and set parallel.tensor (docs/own_model.md)."},
      {{kTensor},
       {kNoTensorType},
       "the program does not say that tensor ranks can share its layers",
       "Leave parallel.tensor out, or split its layers over ModelContext::ranks and set ModelType::tensor "
       "(docs/own_model.md)."},
      {{kContext},
       {kNoContextType},
       "the program does not say that context ranks can share its sequences",
       "Leave parallel.context out, or split them over ModelContext::ranks and set ModelType::context "
       "(docs/own_model.md)."},
      {{kStages, kLayerKeys},
       {kOnePieceType},
       "it is a model in one piece, without layers to spread over stages, seed or recompute one by one",
       "Leave the key out, or return train::Layers instead of train::Model (docs/own_model.md)."},
      {{kSample}, {kOfProgram}, "it writes no text", "Leave the sample out."},
      {{kCnn},
       {kStages},
       "a run file cannot cut it into stages",
       "Use an alexnet, or a layer list in C++ as examples/alexnet_pipeline does."},
      {{kLayerKeys},
       {kCnn},
       "it is a model in one piece, without layers to seed or recompute one by one",
       "Leave seed_layers and activation_checkpoint_interval out, or use a gpt."},
      {{kSample}, {kBert, kCnn, kAlexNet}, "it writes no text", "Leave the sample out."},
      {{kExport}, {kCnn, kAlexNet, kOfProgram}, "transformers has no such model", "Leave the export out."},
      {{kSample}, {kNoTokenizer}, "the model's tokens cannot become text", "Write \"tokenizer\" in \"data\"."},
      {{kEvaluation},
       {kNoValidation},
       "there is nothing to evaluate on",
       "Write \"validation\" in \"data\", or leave eval_every out."},
      {{kValidationFraction}, {kValidation}, "both choose the validation data", "Keep one of the two."},
      {{kModelInOnePiece},
       {kPipelineKeys},
       "only a list of layers has stages and layers to seed or recompute one by one",
       "Give initialize() a PipelineModule, or leave the key out. To recompute the blocks of a model in one piece, "
       "write \"activation_checkpointing\": {\"policy\": \"recompute\"}; its forward() calls them as zero::Sharded or "
       "with "
       "trireme::activations::call(part, f, x)."},
      {{kTensorParallel},
       {kPipelineModule},
       "it splits a model in one piece",
       "Write the layers with tensor::ColumnParallelLinear and the like, or leave autotp_size out."},
      {{kTensorParallel},
       {kWholeSequences},
       "the split model keeps its sequences whole, and gradients that are the same on all tensor ranks would be added "
       "up",
       "Leave sequence_parallel out."},
      {{kTensorParallel}, {kPlacement}, "both place parameters", kLeaveOut},
      // The optimizer.
      {{kTorchOptimizer}, {kOptimizer, kParameterGroups}, "both step the parameters", kLeaveOut},
      {{kTorchOptimizer},
       {kPipelineModule},
       "a pipeline's parameters do not exist before initialize() builds it",
       "Write \"optimizer\" in the configuration, and set InitializeOptions::parameter_groups for parameters that "
       "differ."},
      {{kLr}, {kScheduler, kTorchOptimizer}, "both set the learning rate", kLeaveOut},
      {{kLamb},
       {kSplitLayers},
       "it needs the norm of each whole parameter, and each tensor rank has a part of it",
       "Use AdamW, or no tensor ranks."},
      {{kOneBitAdam, kOneBitLamb, kZeroOneAdam},
       {kSmallMoments},
       "the ranks agree on moments in fp32",
       "Leave state_dtype at fp32."},
      {{kCompression},
       {kOneBitAdam, kOneBitLamb, kZeroOneAdam},
       "that optimizer already compresses gradients",
       kLeaveOut},
      // How ranks synchronize.
      {{kElastic},
       {kNoReplica},
       "it needs its replica number",
       "`trireme train` starts such replicas; a program of yours sets InitializeOptions::sync to "
       "parallel::replica_sync()."},
      {{kElastic},
       {kReplicaRanks},
       "an elastic replica is one process with its own world",
       "Leave pipe, tensor and context at 1."},
      {{kServers},
       {kNoWorker},
       "it needs its worker number",
       "`trireme train` starts servers and workers; a program of yours sets InitializeOptions::sync to "
       "parallel::server::worker_sync()."},
      {{kServers}, {kReplicaRanks}, "a worker is one process", "Leave pipe, tensor and context at 1."},
      {{kServers},
       {kFreeze},
       "servers hold trained parameters only, so workers could have different frozen ones",
       "Leave freeze out, or choose another parallel.sync.kind."},
      {{kAveraging}, {kOwnSync}, "both define how ranks synchronize", kLeaveOut},
      {{kAveraging},
       {kOneBitAdam, kOneBitLamb, kZeroOneAdam},
       "that optimizer synchronizes ranks itself",
       "Use AdamW, or leave parameter_averaging out."},
      {{kAveraging}, {kCompression}, "no gradients are sent", kLeaveOut},
      {{kAveraging},
       {kCommunicationType},
       "no gradients are sent; parameters are, in fp32",
       "Leave communication_data_type out."},
      {{kServers}, {kFp16}, "workers would have different loss scales", "Use bf16."},
      {{kServers},
       {kCommunicationType},
       "gradients are sent in the type of the parameters",
       "Leave communication_data_type out."},
      {{kServers},
       {kOwnSync, kAveraging, kOneBitAdam, kOneBitLamb, kZeroOneAdam, kCompression},
       "both define how ranks synchronize",
       kLeaveOut},
      {{kServers}, {kStepInBackward, kStateStore}, "masters and states are on the servers", kLeaveOut},
      {{kServers}, {kInt8States}, "servers have states in fp32 or bf16", "Use fp32 or bf16 states."},
      {{kSparseRows}, {kLamb}, "it needs the norms of whole parameters", "Leave sparse_rows out, or use AdamW."},
      {{kOffloadOptimizer, kOffloadParam, kDelayed}, {kServers}, "masters and states are on the servers", kLeaveOut},
      {alone,
       {kZero},
       "ZeRO shards states of which every replica needs a full copy to step alone",
       "Use \"stage\": 0, or agree in every step (0/1 Adam: \"local_step_clipper\": 1)."},
      {alone,
       {kSyncBatchNorm},
       "it waits for all replicas in every layer",
       "Switch it off, or agree in every step (0/1 Adam: \"local_step_clipper\": 1)."},
      {alone,
       {kPlacement},
       "some ranks have parameters that others lack",
       "Leave them out, or agree in every step (0/1 Adam: \"local_step_clipper\": 1)."},
      {{kAveraging, kLocalSteps},
       {kContext},
       "they share the tokens of a sample and must step in sync",
       "Use one context rank, or agree in every step (0/1 Adam: \"local_step_clipper\": 1)."},
      {{kAveraging, kLocalSteps},
       {kSequenceParallel},
       "gradients of unsharded parameters are summed over tensor ranks in every step",
       "Switch sequence_parallel off, or agree in every step (0/1 Adam: \"local_step_clipper\": 1)."},
      {alone, {kOtherSums}, "they configure sums of gradients over all ranks in every step", "Leave them out."},
      {compressing, {kOwnSync}, "both define how ranks synchronize", kLeaveOut},
      {compressing, {kZero2}, "no rank has its own gradients at the step", "Use \"stage\": 1, or no compression."},
      {compressing, {kShardSize}, "it needs one sharded copy over all data ranks", kLeaveOut},
      {{kAlgorithm}, {kZero}, "gradients are reduced to shards", "Leave it out: the backend has its own."},
      {{kAlgorithm},
       {kAveraging, kServers, kOneBitAdam, kOneBitLamb, kZeroOneAdam, kCompression, kOwnSync},
       "they do not all-reduce gradients",
       "Leave it out: the backend has its own."},
      {{kAlgorithm}, {kGpu}, "it sends from host memory only", "Leave it out: the backend has its own."},
      {{kTensor}, {kOwnSync}, "it cannot tell sharded parameters from unsharded ones", kLeaveOut},
      {{kZero}, {kOwnSync}, "it needs unsharded parameters and states", "Use \"stage\": 0."},
      // Memory and the step.
      {{kOffloadParam},
       {kBelowZero3},
       "every rank holds all parameters at all times",
       "Use \"stage\": 3, or leave offload_param out."},
      {{kStatesLeaveGpu},
       {kAveraging, kOneBitAdam, kOneBitLamb, kZeroOneAdam, kCompression, kOwnSync},
       "it needs masters and states on the GPU, beside the gradients",
       kLeaveOut},
      {{kDelayedOnGpu}, {kStatesStay}, "the host steps nothing that a delay could hide", kLeaveOut},
      {{kDelayedOnGpu}, {kRatio}, "one part would be a step ahead of the other", kLeaveOut},
      {{kDelayedOnGpu}, {kStepInBackward}, "that steps at once", kLeaveOut},
      {{kDelayedOnGpu}, {kParametersLeaveGpu}, "shards would change while they are gathered", kLeaveOut},
      {{kDelayedOnGpu},
       {kLamb},
       "it needs all gradients first, and the GPU would wait",
       "Use AdamW, or no delayed_update."},
      {{kRatio},
       {kLamb},
       "it needs the norms of whole parameters in one place",
       "Let all of them be stepped on the host (\"ratio\": 1)."},
      {{kStepInBackward},
       {kAveraging, kOwnSync, kOneBitAdam, kOneBitLamb, kZeroOneAdam, kCompression, kClipping, kOverflow, kLamb,
        kStages},
       "it needs all gradients before the first parameter is stepped",
       "Switch one of them off (\"gradient_clipping\": 0)."},
  };
  return table;
}

} // namespace trireme::config
