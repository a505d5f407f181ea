#pragma once

#include <trireme/activations/options.h>
#include <trireme/compress/options.h>
#include <trireme/estimate/model.h>
#include <trireme/offload/options.h>
#include <trireme/parallel/averaging/options.h>
#include <trireme/zero/options.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace trireme::estimate {

/// States of one byte have a scale for each block of a parameter.
inline constexpr int64_t kStateBlock = 256;
inline constexpr int64_t kScaleBytes = 4;

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
    enum class Kind { forward, backward, backward_input, backward_weight };
    Kind kind = Kind::forward;
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
  /// Micro-batches that a stage keeps something of, and those of them of which only the gradients of weights are
  /// missing.
  struct Waiting {
    int64_t in_flight = 0;
    int64_t put_off = 0;
    bool operator==(const Waiting&) const = default;
  };
  /// Of such a pipeline, by stage: the moment with most of both (plan::waiting_of()). Else empty.
  std::vector<Waiting> waiting;
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

  /// ZeRO's.
  int zero_stage = 0;
  std::optional<int64_t> shard_size; // ranks that hold one copy of what is sharded; absent: all data ranks
  int64_t param_persistence_threshold = 100000;
  int64_t model_persistence_threshold = std::numeric_limits<int64_t>::max();
  std::optional<int64_t> prefetch_elements;
  std::optional<int64_t> max_live_elements;

  /// Types of parameters, of gradients in communication, and of accumulated gradients. Parameters that are not fp32
  /// have fp32 masters.
  Type compute = Type::fp32;
  Type travel = Type::fp32;
  Type grad_accumulation = Type::fp32;

  /// Arrays of optimizer states, and bytes of an element: 4, 2, or 1 in blocks with a scale each.
  std::string optimizer = "adam";
  int64_t states = 2;
  int64_t state_bytes = 4;
  /// The optimizer adds up norms of every parameter over the ranks (LAMB).
  bool parameter_norms = false;
  /// Gradients are clipped: their norm is computed before the step.
  bool clips = true;
  /// Buckets are stepped during backward: no norm, and no word on parameters without a gradient.
  bool steps_in_backward = false;

  /// Replicas that step by themselves, as they do after start_step.
  parallel::AveragingOptions averaging;
  /// How the ranks' messages are compressed in some steps: gradients, or the momenta of a 1-bit optimizer.
  compress::GradientCompressionOptions compression;
  bool compresses_momenta = false;
  /// The first step is such a one.
  bool compresses_at_once = false;

  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;

  /// What the data set and its loader hold.
  int64_t data_bytes = 0;

  /// What is elsewhere between uses. Ranks train on a device with memory of its own: then its host's memory is
  /// elsewhere too.
  offload::Options offload;
  bool on_device = false;
  /// Whether this place is elsewhere. On the CPU the host's memory is where the model is.
  bool is_elsewhere(offload::Place place) const {
    return place == offload::Place::nvme || (place == offload::Place::host && on_device);
  }
  bool moves_states() const {
    return is_elsewhere(offload.optimizer.place);
  }
  /// From stage 2 on a device keeps no gradients that it does not step: they leave bucket by bucket, whatever the
  /// number of ranks. Not where several copies of what is sharded add theirs up before the step.
  bool moves_gradients() const {
    return zero_stage >= 2 && on_device && moves_states() && !has_copies();
  }
  bool moves_parameters() const {
    return zero_stage >= 3 && is_elsewhere(offload.parameters.place);
  }
  /// Where masters and parameters both are.
  bool gradients_in_files() const {
    return zero_stage >= 3 && offload.optimizer.place == offload::Place::nvme &&
           offload.parameters.place == offload::Place::nvme && !has_copies();
  }
  /// Whether activations leave the memory where the model is.
  bool moves_activations() const;
  bool has_copies() const {
    return shard_size && *shard_size < gradient_ranks();
  }

  /// Elements that are whole at a time while units of a stage that has so many are kept for later.
  int64_t live_elements(int64_t unit_elements) const {
    return zero::ZeroOptions{.max_live_elements = max_live_elements}.live_elements(unit_elements, stages);
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
  /// Whether ranks share gradients or more; a rank alone, whether gradients or parameters have memory by the bucket
  /// only.
  bool shards(int stage) const {
    return zero_stage >= stage &&
           (gradient_ranks() > 1 || (stage >= 2 && moves_parameters()) || (stage == 2 && moves_gradients()));
  }
  /// Ranks among which optimizer states are divided.
  int64_t shard_ranks() const {
    return shards(1) ? shard_size.value_or(gradient_ranks()) : 1;
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
  Type gradients() const {
    return compute == Type::fp32 ? Type::fp32 : accumulation > 1 ? grad_accumulation : travel;
  }
};

} // namespace trireme::estimate
