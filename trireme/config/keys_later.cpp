#include <trireme/config/verdict_letters.h>

// Sections of capabilities that are not built yet, or never will be. They are accepted if they are switched off.
// clang-format off: a line of the table is a line.
namespace trireme::config {
namespace {

constexpr std::string_view kProfiler = "it belongs to the profiler.";
constexpr std::string_view kElastic = "it belongs to elasticity.";
constexpr std::string_view kAsItIs = "each tensor rank sends its tensors as they are to the same tensor rank of the next stage.";
constexpr std::string_view kComms = "it belongs to the log of collectives.";

std::vector<Section> pipeline_and_memory() {
  return {
    {"engine.pipeline", "", "How a list of layers becomes a pipeline: takes the place of what the program's PipelineModule was made with. A model in one piece refuses what needs layers. Huang et al. 2019, arXiv:1811.06965.", false, {
      {"stages", H, "int|auto 1..4096", "\"auto\"", "Pipeline stages; \"auto\": what parallel.pipe says."},
      {"partition", H, "text", "\"best\"", "Balances the stages by parameters, uniform, profile, memory, or type:REGEX on class names; best: the program's choice, else parameters."},
      {"seed_layers", H, "bool", "false", "Weights and dropout do not depend on the number of stages."},
      {"activation_checkpoint_interval", H, "int >= 0", "0", "Number of layers in a group that is recomputed in backward; 0: none."},
      {"pipe_partitioned", N, "bool", "true", kAsItIs},
      {"grad_partitioned", N, "bool", "true", kAsItIs},
      {"use_reentrant", N, "bool", "true", "it is about Python's autograd."},
    }},
    {"engine.activation_checkpointing", "", "Policies for the activations of a model's parts between forward and backward. Parts are the layers of a list, and of a model in one piece the modules that are zero::Sharded (the blocks of gpt) or called with activations::call(). DeepSpeed's keys turn no recomputation on; policy, choices, memory_budget, layers and nvme_path are ours. docs/memory.md; Chen et al. 2016, arXiv:1604.06174.", false, {
      {"policy", H, "word|auto keep|recompute|host|nvme|recompute_host|recompute_nvme", "null", "Policy of every part: kept; recomputed in backward; moved to the host's memory or to files and prefetched for backward. recompute_host and recompute_nvme recompute and move the inputs. auto: for each part the cheapest, as measured in the second step, within memory_budget. Without it a model does as it says itself (pipeline.activation_checkpoint_interval)."},
      {"memory_budget", H, "bytes", "", "With auto: what the activations of all parts of a rank may take at a time where the model is: \"2GB\", \"512MiB\", 2000000000."},
      {"choices", H, "texts", "null", "The policy of each part in the order of forward, instead of policy, as a run with auto prints them: [\"4*nvme\", \"2*recompute\", \"keep\"]. In a pipeline: of each layer of the list."},
      {"layers", H, "text", "null", "A regular expression: only modules whose class name has a match are parts (GptBlock)."},
      {"nvme_path", H, "path", "null", "The folder for files of activations. They have no names there, so that nothing stays behind, and no checksum: what the disk changes is not found."},
      {"partition_activations", H, "bool", "false", "Each tensor rank keeps a share of the inputs of recomputed parts, and backward gathers them. It needs ranks with equal inputs: with parallel.sequence_parallel, where inputs are sharded already, it changes nothing. ZeRO, section 6.1: Rajbhandari et al. 2020, arXiv:1910.02054."},
      {"number_checkpoints", N, "int >= 1", "null", "it is the size of the buffer of contiguous_memory_optimization, which does not exist; policy and pipeline.activation_checkpoint_interval say what is recomputed."},
      {"contiguous_memory_optimization", N, "bool", "false", "inputs of recomputed layers stay where they are and are not copied into one buffer."},
      {"cpu_checkpointing", H, "bool", "false", "Inputs of recomputed parts go to the host's memory, and are prefetched for their backward. For a model on the CPU they are there already."},
      {"synchronize_checkpoint_boundary", N, "bool", "false", "nothing is waited for at the edge of a part; \"profile\" times parts by the device's own clock."},
      {"profile", H, "bool", "false", "After the second step the forward, the backward and the saved bytes of each part are logged."},
    }},
    {"engine.aio", "", "How files of offload are read and written. docs/offload.md.", false, {
      {"block_size", H, "int >= 4096", "1048576", "Bytes of one request to the system, a multiple of 4096, at most 1 GiB."},
      {"queue_depth", H, "int 1..4096", "8", "Requests that are in the system at a time."},
      {"intra_op_parallelism", H, "int 1..256", "1", "Threads that transfer where the system has no io_uring."},
      {"thread_count", R, "int", "1", "it is called \"intra_op_parallelism\"."},
      {"single_submit", H, "bool", "false", "Hand requests over one by one instead of as many as there is room for."},
      {"overlap_events", H, "bool", "true", "Wait for any request that is finished instead of for a whole queue of them."},
      {"use_gds", R, "bool", "false", "GPUDirect Storage is not used. Leave it out."},
    }},
    {"engine.tensor_parallel", "", "Splits the weights of a program's own model, whose layers know nothing of ranks, over ranks. The gpt of a run file is split by parallel.tensor. Shoeybi et al. 2019, arXiv:1909.08053.", false, {
      {"autotp_size", H, "int >= 0", "0", "Ranks that share each layer; 0 and 1: each has whole layers. More need partition_config.", "[1]"},
      {"tp_size", H, "int >= 1", "1", "Another name of autotp_size."},
      {"tp_grain_size", H, "int >= 1", "1", "Slices by column and row are multiples of this number of features. The width of a head keeps heads whole."},
      {"dtype", N, "text", "\"fp16\"", "weights keep the type of the model, or that of fp16 and bf16."},
      {"tp_overlap_comm", N, "bool", "false", "a model that is split by rules waits for each sum; the gpt of parallel.tensor always overlaps its own with products."},
      {"partition_config", H, "object", "null", "Which weights are split, and how."},
      {"preset_model", L, "text", "null", "there are no rules for models of other libraries; partition_config has the program's."},
    }},
    {"engine.tensor_parallel.partition_config", "", "", false, {
      {"layer_specs", H, "objects", "[]", "The rules. The first that matches a parameter counts; one that never takes effect is an error."},
      {"use_default_specs", N, "bool", "false", "there are no rules but those of layer_specs."},
      {"strict_mode", L, "bool", "false", "parameters without a rule are whole on every rank."},
      {"tp_size", N, "int >= 1", "1", "autotp_size says it."},
      {"embedding_partition_dim", N, "int 0..1", "0", "an embedding is split by a rule of type vocabulary, and by rows."},
      {"lm_head_patterns", N, "texts", "null", "a head is split by a rule with gather_output, or with the embedding that it shares its weight with."},
    }},
    {"engine.tensor_parallel.partition_config.layer_specs", "", "", false, {
      {"patterns", H, "texts", "required", "Regular expressions that match from the beginning of a parameter's name (block.0.query.weight) or, for a weight, of its module's (block.0.query); end them with $ if nothing may follow. A module's bias goes with its weight."},
      {"partition_type", H, "word column|row|vocabulary|skip", "\"column\"", "column: rows of a weight [out, in]; its output stays split, for a row layer. row: its columns; takes what a column layer gives, and sums over the ranks. vocabulary: rows of an embedding, and of the head that shares it. skip: stays whole. DeepSpeed has no vocabulary."},
      {"gather_output", H, "bool", "false", "A column layer's output is joined on every rank: for a head whose logits go into an ordinary loss."},
      {"shape", H, "reals", "null", "[N, -1], column only: the rows are N equal blocks, each of which is split (3: queries, keys and values of one projection)."},
      {"partition_dim", N, "int 0..1", "null", "column splits dim 0 of a weight [out, in] and row dim 1; another one is an error."},
      {"model_types", L, "texts", "null", "a model has no type here."},
    }},
  };
}

std::vector<Section> observation_and_elasticity() {
  return {
    {"engine.flops_profiler", "", "Count floating-point operations by layer.", true, {
      {"enabled", L, "bool", "false", "use \"wall_clock_breakdown\"."},
      {"recompute_fwd_factor", L, "real >= 0", "0", kProfiler},
      {"profile_step", L, "int >= 1", "1", kProfiler},
      {"module_depth", L, "int >= -1", "-1", kProfiler},
      {"top_modules", L, "int >= 1", "1", kProfiler},
      {"detailed", L, "bool", "true", kProfiler},
      {"output_file", L, "path", "null", kProfiler},
    }},
    {"engine.comms_logger", "", "A log of the collectives. Unlike in DeepSpeed the mere presence of the section does not turn it on.", true, {
      {"enabled", L, "bool", "false", "metrics.jsonl has the bytes of each step."},
      {"verbose", L, "bool", "false", kComms},
      {"prof_all", L, "bool", "true", kComms},
      {"debug", L, "bool", "false", kComms},
      {"prof_ops", L, "texts", "null", kComms},
    }},
    {"engine.elasticity", "", "Batch sizes that fit many numbers of ranks.", true, {
      {"enabled", L, "bool", "false", "set \"train_batch_size\"; a resumed run may have another number of ranks."},
      {"max_train_batch_size", L, "int >= 1", "2000", kElastic},
      {"micro_batch_sizes", L, "reals > 0", "[2, 4, 6]", kElastic},
      {"min_gpus", L, "int >= 1", "1", kElastic},
      {"max_gpus", L, "int >= 1", "10000", kElastic},
      {"num_gpus_per_node", L, "int >= 1", "1", kElastic},
      {"model_parallel_size", L, "int >= 1", "1", kElastic},
      {"min_time", L, "int >= 0", "0", kElastic},
      {"prefer_larger_batch", L, "bool", "true", kElastic},
      {"ignore_non_elastic_batch_info", L, "bool", "false", kElastic},
      {"version", L, "real > 0", "0.2", kElastic},
    }},
  };
}

} // namespace

std::vector<Section> later_sections() {
  std::vector<Section> out;
  for (const auto& part : {pipeline_and_memory(), observation_and_elasticity()}) {
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

} // namespace trireme::config
