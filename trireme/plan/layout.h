#pragma once

#include <trireme/memory/activations/choice.h>
#include <trireme/parallel/pipeline/timeline.h>
#include <trireme/plan/cluster.h>
#include <trireme/plan/estimate/run.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trireme::plan {

/// The training, independent of the layout.
struct Job {
  models::TransformerShape model;
  /// Samples of a step, of all ranks.
  int64_t batch = 1;
  /// Types, optimizer, ZeRO's thresholds and buckets; the rest is replaced.
  estimate::Run base;
  context::Kind context_kind = context::Kind::ring;
  /// As pipeline::PipelineOptions: "parameters" or "uniform"; others count as "parameters".
  std::string partition = "parameters";
  /// Whether each parameter of each layer is trained, in the order of the model; empty: all are.
  std::vector<std::vector<bool>> trained = {};
};

/// Job::trained of a model whose frozen parameters are marked.
std::vector<std::vector<bool>> trained_in(const estimate::Model& model);

/// One division of work among the ranks.
struct Layout {
  int64_t pipe = 1;
  int64_t data = 1;
  int64_t context = 1;
  int64_t tensor = 1;
  int zero_stage = 0;
  int64_t micro_batch = 1;
  pipeline::ScheduleKind schedule = pipeline::ScheduleKind::one_f_one_b;
  int64_t chunks = 1;
  /// Number of layers in a recomputed group; 0: none.
  int64_t recompute = 0;
  bool sequence_parallel = false;
  /// Place of masters and optimizer states between steps, and of sharded parameters between uses (stage 3).
  offload::Place states = offload::Place::device;
  offload::Place parameters = offload::Place::device;

  bool moves_nothing() const { return states == offload::Place::device && parameters == offload::Place::device; }
  int64_t ranks() const { return pipe * data * context * tensor; }
  int64_t accumulation(const Job& job) const { return job.batch / (data * micro_batch); }
  /// Ranks that reduce gradients: data and context axes.
  int64_t gradient_ranks() const { return data * context; }
  /// The model is built as a list of layers (config::RunConfig::builds_layers).
  bool is_layer_list() const { return pipe > 1 || recompute > 0; }
  bool operator==(const Layout&) const = default;
};

/// Values of Layout::recompute to try. A policy itself says what is recomputed, in a list of layers per layer; "auto"
/// chooses. A list of policies may be for a model in one piece, or for a list of layers, which every pipeline has.
std::vector<int64_t> recompute_intervals(const Job& job, int64_t pipe);

/// "pipe 8, data 4, context 1, tensor 8, ZeRO 1, micro-batch 2 x 64, interleaved (2 chunks), recompute 1"
std::string describe(const Layout& layout, const Job& job);

/// Why the layout cannot be built with any memory, in one sentence (heads, vocabulary, sequence, batch, layers); empty:
/// it can.
std::string why_impossible(const Job& job, const Layout& layout);

/// The model as a rank of the layout has it, or one like it with `blocks` blocks.
estimate::Model model_of(const Job& job, const Layout& layout, int64_t blocks = 0);

/// Like run_of() for layers alone, as if one rank had all of them, or for a model with `blocks` blocks.
estimate::Run run_of_layers(const Job& job, const Layout& layout, int64_t blocks = 0);

/// Results that many layouts of a job share, computed once.
class Shared {
 public:
  explicit Shared(const Job& job) : job_(job) {}
  /// Micro-batches in flight of each stage, by chunk (estimate::Run::in_flight). Beyond four micro-batches per stage
  /// only the remainder matters, so few schedules are made.
  const std::vector<std::vector<int64_t>>& in_flight(pipeline::ScheduleKind kind, const pipeline::ScheduleShape& shape);
  /// For a zero-bubble pipeline in addition (estimate::Run::most_held).
  const std::vector<pipeline::HeldMicroBatches>& most_held(const pipeline::ScheduleShape& shape);
  /// Computations of each stage (estimate::Run::programs).
  const std::vector<estimate::Run::Programs>& programs(pipeline::ScheduleKind kind,
                                                       const pipeline::ScheduleShape& shape);
  /// Boundaries of the model's parts (estimate::Run::bounds).
  const std::vector<int64_t>& bounds(const Layout& layout);
  /// The pipeline's step with these costs. The last one is cached, because ZeRO's stages have the same costs.
  const pipeline::Timeline& timeline(const Layout& layout, const pipeline::Costs& costs);
  /// activations::choose(), cached by `key`, which must be equal for equal problems only.
  const activations::Choice& choice(const std::vector<double>& key, const activations::Problem& problem);

 private:
  const std::vector<pipeline::Program>& schedules(pipeline::ScheduleKind kind, const pipeline::ScheduleShape& shape);

  const Job& job_;
  std::map<std::array<int, 4>, std::vector<pipeline::Program>> schedules_;
  size_t instructions_ = 0; // in all of schedules_
  std::map<std::array<int, 4>, std::vector<std::vector<int64_t>>> in_flight_;
  std::map<std::pair<int, int>, std::vector<pipeline::HeldMicroBatches>> most_held_; // by stages and micro-batches
  std::map<std::array<int, 4>, std::vector<estimate::Run::Programs>> programs_;
  std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> bounds_;
  std::map<std::vector<double>, activations::Choice> choices_;
  Layout last_layout_;
  std::vector<pipeline::PartCosts> last_costs_;
  pipeline::Timeline last_;
};

/// The run on the ranks of a layout, with the memory of their GPU or their host. Files are read ahead and written
/// behind (pipeline_read and pipeline_write). Errors: Error if why_impossible() is not empty.
estimate::Run run_of(const Job& job, const Layout& layout, Shared& shared, bool on_device = true);

/// Shape of the pipeline. With one stage micro-batches run one after the other, as in naive.
pipeline::ScheduleShape shape_of(const Job& job, const Layout& layout);
pipeline::ScheduleKind schedule_of(const Layout& layout);

} // namespace trireme::plan
