#pragma once

#include <trireme/config/averaging_options.h>
#include <trireme/config/compression_options.h>
#include <trireme/memory/activations/options.h>
#include <trireme/memory/offload/places.h>
#include <trireme/optim/states.h>
#include <trireme/parallel/pipeline/held.h>
#include <trireme/plan/estimate/model.h>
#include <trireme/shards/data_parallel/options.h>
#include <trireme/shards/zero/options.h>
#include <trireme/shards/zero/sharding.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::estimate {

/// Everything that determines the memory and the traffic of a run.
struct Run {
  Model model;
  /// Items have formulas and numbers. Writing them takes most of the time.
  bool explains = true;
  /// The model is a list of layers; otherwise it is in one piece.
  bool layer_list = false;

  int64_t stages = 1;
  int64_t chunks = 1;
  int64_t data_ranks = 1;
  /// `model` is described for these numbers of ranks; repeated here because gradients depend on them.
  int64_t tensor_ranks = 1;
  int64_t context_ranks = 1;
  bool sequence_parallel = false;
  /// Part p, layers [bounds[p], bounds[p + 1]), is on stage p % stages; stages * chunks + 1 numbers.
  std::vector<int64_t> bounds;
  /// Micro-batches in flight of each stage and chunk at the peak, as the schedule gives them.
  std::vector<std::vector<int64_t>> in_flight = {{1}};
  struct Computation {
    pipeline::Op op = pipeline::Op::forward; ///< a computing one
    int64_t chunk = 0;
    bool operator==(const Computation&) const = default;
  };
  /// Consecutive computations, `repeats` times over.
  struct Phase {
    std::vector<Computation> computations;
    int64_t repeats = 1;
  };
  /// Computations of each stage in a step with this many micro-batches, in order.
  struct Programs {
    int64_t micro_batches = 1;
    std::vector<std::vector<Phase>> stages;
  };
  /// For pipelines at ZeRO stage 3: the programs of this step, or of two steps with fewer micro-batches, the smaller
  /// first, from which every further micro-batch gathers the same amount. Else empty.
  std::vector<Programs> programs;
  /// A zero-bubble pipeline, whose backward computes gradients of inputs first and those of weights later.
  bool splits_backward = false;
  /// For such a pipeline, by stage: pipeline::most_held(). Else empty.
  std::vector<pipeline::HeldMicroBatches> most_held;
  /// Number of layers in a recomputed group; 0: none.
  int64_t recompute_interval = 0;

  /// Policies of activations. A uniform policy that recomputes layers of a list is also in recompute_interval.
  activations::Options activations;
  /// The policy of each layer; on the CPU without moves to the host. A group of recomputed layers has that of its
  /// first. With `automatic`: as the layer does itself.
  std::vector<activations::Way> ways() const;

  /// Samples of a micro-batch, and micro-batches per step.
  int64_t micro_batch = 1;
  int64_t accumulation = 1;

  /// From the run's configuration, as the engine gets it. zero.shard_size is also absent if all data ranks hold one
  /// copy.
  zero::ZeroOptions zero;
  precision::PrecisionOptions precision;
  optim::OptimizerOptions optimizer;
  parallel::DataParallelOptions data_parallel;
  parallel::AveragingOptions averaging;
  compress::GradientCompressionOptions compression;
  /// Gradients are clipped, so their norm is computed before the step.
  bool clips = true;
  /// Buckets are stepped during backward, without a norm and without exchange about unused parameters.
  bool steps_in_backward = false;

  /// Bytes that the data set and its loader hold.
  int64_t data_bytes = 0;

  /// Offload between uses. With a GPU, its host's memory is offload memory too.
  offload::Options offload;
  bool on_device = false;
  bool moves_states() const { return offload::is_elsewhere(offload.optimizer.place, on_device); }
  /// From stage 2 on a GPU keeps only gradients that it steps; the others move to the host bucket by bucket, with any
  /// number of ranks. Not if several copies of a shard sum their gradients before the step.
  bool moves_gradients() const { return zero.stage >= 2 && on_device && moves_states() && !has_copies(); }
  bool builds_on_host() const { return offload::builds_on_host(offload, on_device, shards(3)); }
  bool moves_parameters() const {
    return zero.stage >= 3 && offload::is_elsewhere(offload.parameters.place, on_device);
  }
  bool gradients_in_files() const { return zero.stage >= 3 && offload::has_gradients_in_files(offload, has_copies()); }
  /// Whether activations are moved out of the model's memory.
  bool moves_activations() const;
  bool has_copies() const { return zero.shard_size && *zero.shard_size < gradient_ranks(); }

  /// Ranks with the same parameters and other samples or tokens, which sum their gradients: data and context axes.
  int64_t gradient_ranks() const { return data_ranks * context_ranks; }
  /// Ranks that sum gradients of parameters that tensor ranks have whole: with sequence parallelism each saw a part of
  /// the tokens.
  int64_t whole_ranks() const { return gradient_ranks() * (sequence_parallel ? tensor_ranks : 1); }
  int64_t ranks_of_stage() const { return gradient_ranks() * tensor_ranks; }
  zero::Sharding sharding() const {
    return zero::sharding_of(zero.stage, gradient_ranks(), moves_parameters(), moves_gradients());
  }
  /// Whether ranks shard optimizer states (1), gradients (2), parameters (3). For a single rank: whether only buckets
  /// in use have memory for gradients or parameters.
  bool shards(int stage) const {
    const zero::Sharding all = sharding();
    return stage >= 3 ? all.parameters : stage == 2 ? all.gradients : all.states && gradient_ranks() > 1;
  }
  /// Ranks among which optimizer states are sharded.
  int64_t shard_ranks() const { return shards(1) ? zero.shard_size.value_or(gradient_ranks()) : 1; }
  /// Whether replicas average parameters every few steps instead of summing gradients in every step.
  bool averages() const { return averaging.on() && gradient_ranks() > 1; }
  bool has_outer_optimizer() const {
    return averaging.on() && averaging.outer != parallel::AveragingOptions::Outer::none;
  }
  /// Whether a stage computes gradients of weights apart from those of inputs. Not with recomputed layers, nor on the
  /// first stage, whose inputs need no gradients.
  bool computes_weights_later(int64_t stage) const { return splits_backward && recompute_interval == 0 && stage > 0; }

  Type travel() const { return precision.communication_type(); }
  /// Type of accumulated gradients; those of fp32 parameters always count as fp32.
  Type gradients(int64_t micro_batches) const {
    return precision.has_masters() ? precision.gradient_type(micro_batches) : Type::fp32;
  }
  Type gradients() const { return gradients(accumulation); }
  /// Bytes of an element of: parameters, gradients in communication, accumulated gradients, states.
  int64_t parameter_bytes() const { return bytes_of(precision.compute); }
  int64_t travel_bytes() const { return bytes_of(travel()); }
  int64_t gradient_bytes() const { return bytes_of(gradients()); }
  int64_t state_bytes() const { return bytes_of(optimizer.state_type); }
  /// Number of arrays of optimizer states; for a compressing optimizer with its error feedback.
  int64_t states() const { return std::ssize(optim::states_of(optimizer.rule)) + (optimizer.compresses() ? 1 : 0); }
  /// Bytes of the scales of this many elements of a state array.
  int64_t scale_bytes(int64_t elements) const {
    return optimizer.state_type == optim::StateType::int8 ? optim::kScaleBytes * optim::blocks_of(elements) : 0;
  }
  /// How messages are compressed in some steps: gradients, or what the optimizer exchanges as signs.
  compress::GradientCompressionOptions compressed() const {
    compress::GradientCompressionOptions by = compression;
    by.kind = optimizer.compresses() ? compress::GradientCompressionOptions::Kind::sign : by.kind;
    return by;
  }
};

} // namespace trireme::estimate
