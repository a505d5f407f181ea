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

/// Memory of a module's parameters, gradients and optimizer states at a ZeRO stage, with the formulas of `trireme
/// estimate`. Without activations, data and libtorch itself. Counterpart of DeepSpeed's
/// estimate_zero2_model_states_mem_needs_all_live() and estimate_zero3_model_states_mem_needs_all_live().
struct ZeroMemory {
  struct Row {
    offload::Place states = offload::Place::device;     ///< "offload_optimizer"
    offload::Place parameters = offload::Place::device; ///< "offload_param", stage 3
    bool zero_init = false;                             ///< the model is built within zero::Init, stage 3

    /// Bytes of a rank, in the memory of its GPU (or host, on the CPU).
    int64_t parameter_bytes = 0;
    int64_t gradient_bytes = 0;
    int64_t state_bytes = 0; ///< of the optimizer
    int64_t master_bytes = 0;
    int64_t buffer_bytes = 0; ///< buckets and units in memory temporarily, and buffers of files
    int64_t rank_bytes() const { return parameter_bytes + gradient_bytes + state_bytes + master_bytes + buffer_bytes; }
    /// Bytes of a rank while its parameters move into flat buffers: below stage 3 there are two copies then.
    int64_t start_bytes = 0;
    int64_t peak_bytes() const { return std::max(rank_bytes(), start_bytes); }
    /// Peak bytes in host memory, summed over the ranks of a host. On GPUs: what is offloaded, and the model while it
    /// is built; on the CPU everything.
    int64_t host_bytes = 0;
    /// Peak bytes in files, summed over the ranks of a host.
    int64_t file_bytes = 0;
    /// One sentence for each key of the configuration that keeps something from being offloaded.
    std::vector<std::string> notes = {};
  };

  int zero_stage = 0;
  int64_t ranks_per_host = 1;
  int64_t hosts = 1;
  bool on_gpu = true;
  int64_t parameters = 0;   ///< of the whole model, shared ones once
  int64_t trained = 0;      ///< those with requires_grad
  int64_t largest_unit = 0; ///< parameters of the largest zero::Sharded module; 0: none, stage 3 keeps large ones whole
  std::vector<Row> rows = {}; ///< by memory of a rank, ascending

  /// The rows as a table, and the notes below.
  std::string table() const;
};

struct ZeroMemoryOptions {
  /// Types, optimizer, thresholds, buckets. Each row sets its own ZeRO stage and offload.
  config::EngineConfig config = {};
  /// Ranks train on GPUs, one each. Otherwise on the CPU, where offload to the host moves nothing.
  bool on_gpu = true;
};

/// Estimates for the model on hosts with this many ranks each, all of them data ranks. Reads only sizes of parameters,
/// so a model on the meta device works. Units of stage 3 are modules that are zero::Sharded. Errors: InputError for
/// fewer than one rank or host.
ZeroMemory estimate_zero2_memory(torch::nn::Module& model, int64_t ranks_per_host = 1, int64_t hosts = 1,
                                 const ZeroMemoryOptions& options = {});
ZeroMemory estimate_zero3_memory(torch::nn::Module& model, int64_t ranks_per_host = 1, int64_t hosts = 1,
                                 const ZeroMemoryOptions& options = {});

} // namespace trireme::engine
