#pragma once

#include <trireme/config/engine_config.h>
#include <trireme/memory/offload/options.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::engine {

/// What parameters, gradients and optimizer states of a module need at a ZeRO stage, with the numbers of `trireme
/// estimate`. Activations, data and libtorch itself are not in it. DeepSpeed's are
/// estimate_zero2_model_states_mem_needs_all_live() and estimate_zero3_model_states_mem_needs_all_live().
struct ZeroMemory {
  struct Row {
    offload::Place states = offload::Place::device;     ///< "offload_optimizer"
    offload::Place parameters = offload::Place::device; ///< "offload_param", stage 3
    bool zero_init = false;                             ///< the model is built within zero::Init, stage 3

    /// Bytes of a rank, in the memory that it trains in.
    int64_t parameter_bytes = 0;
    int64_t gradient_bytes = 0;
    int64_t state_bytes = 0; ///< of the optimizer
    int64_t master_bytes = 0;
    int64_t buffer_bytes = 0; ///< buckets and units that have memory for a time, and buffers of files
    int64_t rank_bytes() const {
      return parameter_bytes + gradient_bytes + state_bytes + master_bytes + buffer_bytes;
    }
    /// Of a rank, while its parameters move into their flat buffers: below stage 3 they are there twice.
    int64_t start_bytes = 0;
    int64_t peak_bytes() const {
      return std::max(rank_bytes(), start_bytes);
    }
    /// Of all ranks of a host together, in its memory: the largest moment. On GPUs what is moved there, and the model
    /// as it is built; on the CPU everything.
    int64_t host_bytes = 0;
    /// Of all ranks of a host together, in files, the largest moment.
    int64_t file_bytes = 0;
    /// What the configuration keeps from being moved, and which key does: a sentence each.
    std::vector<std::string> notes = {};
  };

  int zero_stage = 0;
  int64_t ranks_per_host = 1;
  int64_t hosts = 1;
  bool on_gpu = true;
  int64_t parameters = 0;   ///< of the whole model, shared ones once
  int64_t trained = 0;      ///< of them those with requires_grad
  int64_t largest_unit = 0; ///< of the modules that are zero::Sharded the one with most parameters; 0: there are none,
                            ///< and stage 3 keeps large parameters whole
  std::vector<Row> rows = {}; ///< the least memory of a rank first

  /// A row for each of them, and the notes below.
  std::string table() const;
};

struct ZeroMemoryOptions {
  /// Types, optimizer, thresholds, buckets; its ZeRO stage and the places of offload are those of each row.
  config::EngineConfig config = {};
  /// Ranks train on GPUs, each on one of its own; else on the CPU, where offload to the host moves nothing.
  bool on_gpu = true;
};

/// For the model on hosts with so many ranks each, all of them data ranks. Only sizes of the parameters are read: a
/// model on the meta device does. Units of stage 3 are its modules that are zero::Sharded. Errors: InputError for fewer
/// than one rank or host.
ZeroMemory estimate_zero2_memory(torch::nn::Module& model, int64_t ranks_per_host = 1, int64_t hosts = 1,
                                 const ZeroMemoryOptions& options = {});
ZeroMemory estimate_zero3_memory(torch::nn::Module& model, int64_t ranks_per_host = 1, int64_t hosts = 1,
                                 const ZeroMemoryOptions& options = {});

} // namespace trireme::engine
