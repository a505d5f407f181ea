#include <trireme/config/verdict_letters.h>

// clang-format off: a line of the table is a line.
namespace trireme::config {
namespace {

constexpr std::string_view kPlusPlus = "ZeRO++ is not part of this engine. Leave it out.";
constexpr std::string_view kMics = "parameters are gathered within \"mics_shard_size\" ranks by one collective. Leave it out.";
constexpr std::string_view kOptimizerPlace = "write \"offload_optimizer\": {\"device\": \"cpu\"} instead.";
constexpr std::string_view kParameterPlace = "write \"offload_param\": {\"device\": \"cpu\"} instead.";
constexpr std::string_view kFolder = "nvme: the folder of the files, on a disk of the host; each rank makes a folder of its own in it.";
constexpr std::string_view kPinned = "For a model on a GPU: host memory is pinned, so that copies are asynchronous.";

} // namespace

std::vector<Section> zero_sections() {
  return {
    {"engine.zero_optimization", "", "Model states sharded over the data ranks. Rajbhandari et al. 2020, arXiv:1910.02054.", false, {
      {"stage", H, "int 0..3", "0", "Shared among the data ranks: nothing (0), optimizer states (1), gradients too (2), parameters too (3)."},
      {"reduce_bucket_size", H, "int|auto >= 0", "null", "Largest number of elements one gradient collective moves; 0: one parameter. Without it buckets hold 25 MiB. \"auto\": the model's width squared, where it is known."},
      {"allgather_bucket_size", N, "int >= 1", "500000000", "parameters are gathered in the buckets of their gradients."},
      {"overlap_comm", N, "bool", "null", "gradients are always sent during the backward pass."},
      {"contiguous_gradients", N, "bool", "true", "gradients always lie in flat buffers."},
      {"reduce_scatter", N, "bool", "true", "from stage 1 on gradients are always reduce-scattered."},
      {"allgather_partitions", N, "bool", "true", "from stage 1 on parameters are always all-gathered."},
      {"use_multi_rank_bucket_allreduce", N, "bool", "true", "a bucket is always reduced by one collective."},
      {"round_robin_gradients", N, "bool", "false", "each rank owns a slice of every bucket."},
      {"load_from_fp32_weights", N, "bool", "true", "there is one set of weights."},
      {"elastic_checkpoint", N, "bool", "false", "every checkpoint fits any number of ranks."},
      {"ignore_unused_parameters", N, "bool", "true", "a parameter without a gradient is always allowed."},
      {"offload_param", H, "object", "null", "Place of parameters while no layer uses them. docs/offload.md."},
      {"offload_optimizer", H, "object", "null", "Place of masters and optimizer states between steps. docs/offload.md."},
      {"sub_group_size", N, "int >= 0", "1000000000", "the optimizer steps, and offload moves, bucket by bucket: reduce_bucket_size bounds one, at stage 3 a unit's parameters do."},
      {"stage3_prefetch_bucket_size", H, "int|auto >= 0", "null", "Stage 3: elements that may be gathered ahead of their use. By default the next unit is, of any size; 0 gathers nothing ahead. \"auto\": 0.9 x the width squared."},
      {"prefetch_bucket_size", H, "int|auto >= 0", "null", "Another name of stage3_prefetch_bucket_size."},
      {"stage3_param_persistence_threshold", H, "int|auto >= 0", "100000", "Stage 3: parameters with fewer elements stay whole on every rank. \"auto\": 10 x the width."},
      {"param_persistence_threshold", H, "int|auto >= 0", "100000", "Another name of stage3_param_persistence_threshold."},
      {"stage3_model_persistence_threshold", H, "int >= 0", "9223372036854775807", "Stage 3: most elements that stay whole for being small, the smallest first."},
      {"stage3_max_live_parameters", H, "int|auto >= 0", "null", "Stage 3: elements that are whole at a time, as far as units that the step uses again are kept for it: less is gathered twice. One unit and what is gathered ahead are whole in any case. Without it or \"auto\": nothing is kept, in pipelines half of what a stage has."},
      {"max_live_parameters", H, "int|auto >= 0", "null", "Another name of stage3_max_live_parameters."},
      {"stage3_max_reuse_distance", N, "int >= 0", "1000000000", "a unit that is expected next is not released."},
      {"max_reuse_distance", N, "int >= 0", "1000000000", "another name of stage3_max_reuse_distance."},
      {"stage3_gather_16bit_weights_on_model_save", N, "bool", "false", "every checkpoint can be read as whole weights, whatever the stage."},
      {"gather_16bit_weights_on_model_save", N, "bool", "false", "another name of stage3_gather_16bit_weights_on_model_save."},
      {"stage3_module_granularity_threshold", N, "int >= 0", "0", "units are the layers of a list, or the modules that are Sharded."},
      {"stage3_use_all_reduce_for_fetch_params", N, "bool", "false", "parameters are always all-gathered."},
      {"stage3_allgather_sequential", N, "bool", "false", "a unit is one collective."},
      {"memory_efficient_linear", N, "bool", "true", "linear layers keep no copies of their weights."},
      {"pipeline_loading_checkpoint", N, "bool", "false", "a rank reads only what it owns in any case."},
      {"override_module_apply", N, "bool", "true", "C++ modules are not patched."},
      {"log_trace_cache_warnings", N, "bool", "false", "the order of units is learned anew in every pass."},
      {"enable_sanity_checks", N, "bool", "false", "the checks that exist are always on."},
      {"leaf_module", N, "object", "null", "a unit is what is Sharded, with everything in it."},
      {"cpu_offload", R, "bool", "false", kOptimizerPlace},
      {"cpu_offload_params", R, "bool", "false", kParameterPlace},
      {"cpu_offload_param", R, "bool", "false", kParameterPlace},
      {"cpu_offload_use_pin_memory", R, "bool", "false", "write \"pin_memory\" in the offload section instead."},
      {"stage3_gather_fp16_weights_on_model_save", R, "bool", "false", "write \"stage3_gather_16bit_weights_on_model_save\" instead."},
      {"grad_hooks", R, "bool", "null", "no version of the program reads it. Leave it out."},
      {"legacy_stage1", R, "bool", "false", "there is one stage 1. Leave it out."},
      {"zero_hpz_partition_size", R, "int", "1", kPlusPlus},
      {"zero_quantized_weights", R, "bool", "false", kPlusPlus},
      {"zero_quantized_nontrainable_weights", R, "bool", "false", kPlusPlus},
      {"zero_quantized_gradients", R, "bool", "false", kPlusPlus},
      {"zeropp_loco_param", R, "object", "null", kPlusPlus},
      {"mics_shard_size", H, "int >= -1", "-1", "Stages 1 to 3: this number of neighbouring data ranks shards one copy; other such groups hold copies of it. -1: all ranks share one copy. Zhang et al. 2022, arXiv:2205.00119."},
      {"mics_hierarchical_params_gather", R, "bool", "false", kMics},
      {"save_muon_momentum_buffer_in_memory", R, "bool", "false", "there is no Muon. Leave it out."},
      {"zenflow", R, "object", "null", "ZenFlow is not part of this engine. Leave it out."},
    }},
    {"engine.zero_optimization.offload_param", "", "Place of a rank's parameter shards while no layer uses them, at stage 3. Rajbhandari et al. 2021, arXiv:2104.07857.", true, {
      {"device", H, "word|auto none|cpu|nvme", "\"none\"", "none: where the model is. cpu: in the host's memory. nvme: in files. \"auto\": none.", R"(["auto"])"},
      {"nvme_path", H, "path", "null", kFolder},
      {"buffer_count", H, "int >= 1", "5", "nvme: buckets that have memory on the host at a time, at least 3: all but one may be read ahead of use."},
      {"buffer_size", N, "int >= 1", "100000000", "buffers are as large as the largest buckets that are in files."},
      {"max_in_cpu", H, "int >= 0", "1000000000", "nvme: this number of a rank's elements, the first units, stays in the host's memory."},
      {"pin_memory", H, "bool", "true", kPinned},
    }},
    {"engine.zero_optimization.offload_optimizer", "", "Place of masters and optimizer states between steps, and of gradients of a model on a GPU. Ren et al. 2021, arXiv:2101.06840.", true, {
      {"device", H, "word|auto none|cpu|nvme", "\"none\"", "none: where the parameters are. cpu: in the host's memory, where the CPU steps them. nvme: in files. \"auto\": none.", R"(["auto"])"},
      {"nvme_path", H, "path", "null", kFolder},
      {"buffer_count", H, "int >= 1", "4", "nvme: chunks that have memory on the host at a time, at least 3: one is read and one written while one is stepped."},
      {"pin_memory", H, "bool", "true", kPinned},
      {"pipeline_read", H, "bool", "false", "nvme: read the next bucket while one is stepped."},
      {"pipeline_write", H, "bool", "false", "nvme: write the bucket before while one is stepped."},
      {"fast_init", H, "bool", "false", "nvme: do not write initial states; what was never written is read as its initial value."},
      {"ratio", H, "real 0..1", "1.0", "For a model on a device: share of the elements that is moved, by whole buckets; the rest stays on the device and is stepped there."},
      {"delayed_update", H, "bool", "false", "For a model on a device: step while it computes the next gradients, with parameters that lack this step's: ZeRO-Offload's delayed parameter update. Ours."},
      {"buffer_size", R, "int", "null", "it belongs in \"offload_param\"; here it is \"buffer_count\"."},
      {"super_offload", R, "bool", "false", "SuperOffload needs Grace Hopper. Leave it out."},
      {"cpuadam_cores_perc", R, "real", "0.8", "it belongs to SuperOffload. Leave it out."},
    }},
  };
}

} // namespace trireme::config
