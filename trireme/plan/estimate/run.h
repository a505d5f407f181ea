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

/// Everything that the memory and the traffic of a run follow from.
struct Run {
  Model model;
  /// Items say how their bytes come about. Without it they have neither formulas nor numbers, whose writing takes most
  /// of the time.
  bool explains = true;
  /// The model is a list of layers; else it is in one piece.
  bool layer_list = false;

  int64_t stages = 1;
  int64_t chunks = 1;
  int64_t data_ranks = 1;
  /// `model` is described for these; they are repeated here for what concerns gradients.
  int64_t tensor_ranks = 1;
  int64_t context_ranks = 1;
  bool sequence_parallel = false;
  /// Part p, layers [bounds[p], bounds[p + 1]), is on stage p % stages; stages * chunks + 1 numbers.
  std::vector<int64_t> bounds;
  /// Micro-batches that each stage keeps the activations of, for each of its chunks, when it keeps the most: what the
  /// schedule says.
  std::vector<std::vector<int64_t>> in_flight = {{1}};
  struct Computation {
    pipeline::Op op = pipeline::Op::forward; ///< one that computes
    int64_t chunk = 0;
    bool operator==(const Computation&) const = default;
  };
  /// Computations that follow each other, `repeats` times over.
  struct Phase {
    std::vector<Computation> computations;
    int64_t repeats = 1;
  };
  /// What each stage computes in a step of so many micro-batches, in order.
  struct Programs {
    int64_t micro_batches = 1;
    std::vector<std::vector<Phase>> stages;
  };
  /// Where a pipeline gathers parameters (ZeRO stage 3): the programs of this step, or of two with fewer micro-batches,
  /// the smaller first, beyond which every further micro-batch gathers as much. Else empty.
  std::vector<Programs> programs;
  /// A zero-bubble pipeline, whose backward computes the gradients of inputs and, later, those of weights.
  bool splits_backward = false;
  /// Of such a pipeline, by stage: pipeline::most_held(). Else empty.
  std::vector<pipeline::HeldMicroBatches> most_held;
  /// Layers that are recomputed together; 0: none is.
  int64_t recompute_interval = 0;

  /// What becomes of activations between forward and backward. A uniform way that recomputes layers of a list is also
  /// in recompute_interval.
  activations::Options activations;
  /// The way of each layer, on the CPU none that says host; a group of recomputed layers has that of its first. With
  /// `automatic`: as the layer does by itself.
  std::vector<activations::Way> ways() const;

  /// Samples of a micro-batch, and micro-batches of a step.
  int64_t micro_batch = 1;
  int64_t accumulation = 1;

  /// What the run's configuration says, as the engine gets it. Of ZeRO shard_size is absent also where all data ranks
  /// hold one copy.
  zero::ZeroOptions zero;
  precision::PrecisionOptions precision;
  optim::OptimizerOptions optimizer;
  parallel::DataParallelOptions data_parallel;
  parallel::AveragingOptions averaging;
  compress::GradientCompressionOptions compression;
  /// Gradients are clipped: their norm is computed before the step.
  bool clips = true;
  /// Buckets are stepped during backward: no norm, and no word on parameters without a gradient.
  bool steps_in_backward = false;

  /// What the data set and its loader hold.
  int64_t data_bytes = 0;

  /// What is elsewhere between uses. Ranks train on a device with memory of its own: then its host's memory is
  /// elsewhere too.
  offload::Options offload;
  bool on_device = false;
  bool moves_states() const {
    return offload::is_elsewhere(offload.optimizer.place, on_device);
  }
  /// From stage 2 on a device keeps no gradients that it does not step: they leave bucket by bucket, whatever the
  /// number of ranks. Not where several copies of what is sharded add theirs up before the step.
  bool moves_gradients() const {
    return zero.stage >= 2 && on_device && moves_states() && !has_copies();
  }
  bool moves_parameters() const {
    return zero.stage >= 3 && offload::is_elsewhere(offload.parameters.place, on_device);
  }
  bool gradients_in_files() const {
    return zero.stage >= 3 && offload::has_gradients_in_files(offload, has_copies());
  }
  /// Whether activations leave the memory where the model is.
  bool moves_activations() const;
  bool has_copies() const {
    return zero.shard_size && *zero.shard_size < gradient_ranks();
  }

  /// Ranks that hold the same parameters, learn from other samples or tokens, and add up their gradients: data and
  /// context axis together.
  int64_t gradient_ranks() const {
    return data_ranks * context_ranks;
  }
  /// Ranks over which gradients of what the tensor axis holds whole are summed: with sequence parallelism each has seen
  /// a part of the tokens.
  int64_t whole_ranks() const {
    return gradient_ranks() * (sequence_parallel ? tensor_ranks : 1);
  }
  int64_t ranks_of_stage() const {
    return gradient_ranks() * tensor_ranks;
  }
  zero::Sharding sharding() const {
    return zero::sharding_of(zero.stage, gradient_ranks(), moves_parameters(), moves_gradients());
  }
  /// Whether ranks share optimizer states (1), gradients (2), parameters (3). Of a rank alone: whether gradients or
  /// parameters have memory by the bucket only.
  bool shards(int stage) const {
    const zero::Sharding all = sharding();
    return stage >= 3 ? all.parameters : stage == 2 ? all.gradients : all.states && gradient_ranks() > 1;
  }
  /// Ranks among which optimizer states are divided.
  int64_t shard_ranks() const {
    return shards(1) ? zero.shard_size.value_or(gradient_ranks()) : 1;
  }
  /// Whether replicas average parameters now and then instead of summing gradients in every step.
  bool averages() const {
    return averaging.on() && gradient_ranks() > 1;
  }
  bool has_outer_optimizer() const {
    return averaging.on() && averaging.outer != parallel::AveragingOptions::Outer::none;
  }
  /// Whether a stage computes gradients of weights apart from those of inputs: not where layers are recomputed, nor on
  /// the first stage, whose inputs need none.
  bool computes_weights_later(int64_t stage) const {
    return splits_backward && recompute_interval == 0 && stage > 0;
  }

  Type travel() const {
    return precision.communication_type();
  }
  /// Of accumulated gradients. Those of fp32 parameters are counted in fp32 always.
  Type gradients(int64_t micro_batches) const {
    return precision.has_masters() ? precision.gradient_type(micro_batches) : Type::fp32;
  }
  Type gradients() const {
    return gradients(accumulation);
  }
  /// Bytes of a parameter, of a gradient on its way, of an accumulated gradient, and of a state.
  int64_t parameter_bytes() const {
    return bytes_of(precision.compute);
  }
  int64_t travel_bytes() const {
    return bytes_of(travel());
  }
  int64_t gradient_bytes() const {
    return bytes_of(gradients());
  }
  int64_t state_bytes() const {
    return bytes_of(optimizer.state_type);
  }
  /// Arrays of optimizer states; for an optimizer that compresses, with the errors of compression.
  int64_t states() const {
    return std::ssize(optim::states_of(optimizer.rule)) + (optimizer.compresses() ? 1 : 0);
  }
  /// Bytes of scales beside so many states of one array.
  int64_t scale_bytes(int64_t elements) const {
    return optimizer.state_type == optim::StateType::int8 ? optim::kScaleBytes * optim::blocks_of(elements) : 0;
  }
  /// How the ranks' messages are compressed in some steps: gradients, or what the optimizer exchanges, as signs.
  compress::GradientCompressionOptions compressed() const {
    compress::GradientCompressionOptions by = compression;
    by.kind = optimizer.compresses() ? compress::GradientCompressionOptions::Kind::sign : by.kind;
    return by;
  }
};

} // namespace trireme::estimate
