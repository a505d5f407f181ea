#include <trireme/config/deepspeed_json.h>

#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/config/activations_json.h>
#include <trireme/config/compatibility.h>
#include <trireme/config/key_check.h>
#include <trireme/config/offload_json.h>
#include <trireme/config/optimizer_json.h>
#include <trireme/config/precision_json.h>
#include <trireme/config/tensor_parallel_json.h>

#include <algorithm>
#include <limits>
#include <regex>

namespace trireme::config {
namespace {

// Above this a model's gradients are one or two buckets, and nothing overlaps.
constexpr int64_t kLargeBucketBytes = int64_t{256} << 20;
constexpr int64_t kGradientBytes = 4; // fp32

// Mistakes for which the general error would be misleading.
void check_common_mistakes(const JsonNode& node) {
  const JsonNode* zero = node.find("zero_optimization");
  if (zero != nullptr && zero->kind() == JsonNode::Kind::boolean) {
    zero->fail("not supported: the form with true or false is long deprecated", R"(Write {"stage": 0}.)");
  }
  const auto enabled = [&](const char* section) {
    const JsonNode* found = node.find(section);
    const JsonNode* value = found != nullptr && found->is_object() ? found->find("enabled") : nullptr;
    return value != nullptr && value->kind() == JsonNode::Kind::boolean && value->as_bool() ? value : nullptr;
  };
  const JsonNode* fp16 = enabled("fp16");
  for (const char* name : {"bf16", "bfloat16"}) {
    if (const JsonNode* bf16 = enabled(name); fp16 != nullptr && bf16 != nullptr) {
      bf16->fail(concat("fp16 is enabled as well, at ", fp16->where()), "Enable one of the two.");
    }
  }
  if (const JsonNode* old = enabled("bfloat16"); old != nullptr && enabled("bf16") != nullptr) {
    old->fail(concat("bfloat16 is another name of bf16, which is enabled as well, at ", enabled("bf16")->where()),
              "Keep one of the two.");
  }
}

BatchKeys read_batch(const Values& values) {
  BatchKeys out;
  const auto read = [&](const char* key) {
    const JsonNode* found = values.find(key);
    if (found != nullptr && out.where.empty()) {
      out.where = found->where();
    }
    return found == nullptr ? std::nullopt : std::optional<int64_t>(found->as_integer());
  };
  out.train = read("train_batch_size");
  out.micro = read("train_micro_batch_size_per_gpu");
  out.accumulation = read("gradient_accumulation_steps");
  if (out.where.empty()) {
    out.where = values.node().where();
  }
  return out;
}

MonitorSection read_monitor(const Values& values) {
  MonitorSection out;
  out.enabled = values.get("enabled", out.enabled);
  out.output_path = values.get("output_path", out.output_path);
  out.job_name = values.get("job_name", out.job_name);
  return out;
}

parallel::DataParallelOptions read_data_parallel(const Values& values, std::vector<std::string>& notes) {
  parallel::DataParallelOptions out;
  out.prescale_gradients = values.get("prescale_gradients", out.prescale_gradients);
  out.broadcast_buffers = values.get("broadcast_buffers", out.broadcast_buffers);
  out.sync_batch_norm = values.get("sync_batch_norm", out.sync_batch_norm);
  out.gradient_predivide_factor = values.get("gradient_predivide_factor", out.gradient_predivide_factor);
  const std::string op = values.get<std::string>("gradient_allreduce_op", "mean");
  out.op = op == "sum" ? parallel::DataParallelOptions::Op::sum : parallel::DataParallelOptions::Op::mean;
  const auto& names = parallel::DataParallelOptions::kAlgorithmNames;
  out.algorithm = static_cast<parallel::DataParallelOptions::Algorithm>(
      std::find(names.begin(), names.end(), values.get<std::string>("gradient_allreduce_algorithm", names.front())) -
      names.begin());

  const JsonNode* elements = values.section("zero_optimization").find("reduce_bucket_size");
  if (elements != nullptr) {
    constexpr int64_t most = std::numeric_limits<int64_t>::max() / kGradientBytes;
    out.bucket_bytes = std::clamp(elements->as_integer(), int64_t{1}, most) * kGradientBytes;
    out.first_bucket_bytes = std::min(out.first_bucket_bytes, out.bucket_bytes);
    if (out.bucket_bytes > kLargeBucketBytes) {
      notes.push_back(
          concat(elements->where(), ": ", elements->path(), ": buckets of ", format_bytes(out.bucket_bytes),
                 " are full only when the backward pass is nearly over, so little communication overlaps with it. "
                 "Leave the key out for buckets of 25 MiB."));
    }
  }
  return out;
}

checkpoint::TagValidation read_tag_validation(const Values& values) {
  const std::string word = lower(values.get<std::string>("tag_validation", "Warn"));
  using checkpoint::TagValidation;
  return word == "ignore" ? TagValidation::ignore : word == "fail" ? TagValidation::fail : TagValidation::warn;
}

void check_partition(const JsonNode& node, const std::string& partition) {
  constexpr std::string_view kType = "type:";
  constexpr size_t kLongestPattern = 1000;
  if (partition.starts_with(kType)) {
    if (partition.size() > kLongestPattern) { // std::regex calls itself for every bracket
      node.fail(concat("the regular expression has more than ", kLongestPattern, " characters"));
    }
    try {
      std::regex(partition.substr(kType.size()), std::regex::ECMAScript | std::regex::icase);
    } catch (const std::regex_error& error) {
      node.fail(concat("the regular expression is wrong: ", error.what()));
    }
  } else if (const std::vector<std::string> methods = {"parameters", "uniform", "profile", "memory"};
             std::ranges::find(methods, partition) == methods.end()) {
    node.fail(concat("there is no partition \"", partition, '"'),
              "It is one of parameters, uniform, profile, memory, best, or type:REGEX.");
  }
}

// "auto" and "best" leave it to the program.
pipeline::PipelineKeys read_pipeline(const Values& values) {
  pipeline::PipelineKeys out;
  const JsonNode* stages = values.find("stages");
  if (stages != nullptr && stages->kind() != JsonNode::Kind::string) {
    out.stages = static_cast<int>(stages->as_integer());
  }
  out.partition = values.maybe<std::string>("partition");
  if (out.partition == "best") {
    out.partition.reset();
  } else if (out.partition) {
    check_partition(*values.find("partition"), *out.partition);
  }
  out.seed_layers = values.maybe<bool>("seed_layers");
  out.activation_checkpoint_interval = values.maybe<int64_t>("activation_checkpoint_interval");
  return out;
}

compress::GradientCompressionOptions read_compression(const Values& values) {
  using Options = compress::GradientCompressionOptions;
  using Kind = Options::Kind;
  Options out;
  if (!values.present()) {
    return out;
  }
  const auto kind = values.get<std::string>("kind", "");
  for (const Kind one : {Kind::sign, Kind::eight_bit, Kind::top_k, Kind::power_sgd}) {
    out.kind = kind == Options::name(one) ? one : out.kind;
  }
  const auto only_of = [&](const char* key, Kind of) {
    if (const JsonNode* found = values.find(key); found != nullptr && out.kind != of) {
      found->fail(concat("is of ", Options::name(of), ", and the kind is ", kind), "Leave it out.");
    }
  };
  only_of("rank", Kind::power_sgd);
  only_of("ratio", Kind::top_k);
  out.rank = values.get("rank", out.rank);
  out.ratio = values.get("ratio", out.ratio);
  if (out.ratio > 1) {
    values.find("ratio")->fail(concat("is ", out.ratio, ": more than all elements"),
                               "Write a share, from above 0 to 1.");
  }
  out.start_step = values.get("start_step", out.start_step);
  return out;
}

parallel::AveragingOptions read_averaging(const Values& values) {
  using Options = parallel::AveragingOptions;
  Options out;
  if (!values.present()) {
    return out;
  }
  out.every = values.get<int64_t>("every", 0);
  const auto outer = values.get<std::string>("outer_optimizer", "none");
  out.outer = outer == "slowmo"     ? Options::Outer::slowmo
              : outer == "nesterov" ? Options::Outer::nesterov
                                    : Options::Outer::none;
  if (out.outer == Options::Outer::slowmo) {
    out.outer_lr = 1;
    out.outer_momentum = 0.5;
  } else if (out.outer == Options::Outer::nesterov) {
    out.outer_lr = Options::kNesterovLr;
    out.outer_momentum = Options::kNesterovMomentum;
  }
  for (const char* key : {"outer_lr", "outer_momentum"}) {
    if (const JsonNode* found = values.find(key); found != nullptr && out.outer == Options::Outer::none) {
      found->fail("has no effect without an outer optimizer",
                  "Write \"outer_optimizer\": \"nesterov\" or \"slowmo\", or leave it out.");
    }
  }
  out.outer_lr = values.get("outer_lr", out.outer_lr);
  out.outer_momentum = values.get("outer_momentum", out.outer_momentum);
  out.start_step = values.get("start_step", out.start_step);
  out.elastic = values.get("elastic", out.elastic);
  if (out.elastic && out.start_step > 0) {
    values.find("start_step")
        ->fail(concat("is ", out.start_step, ", with \"elastic\": elastic replicas never add up gradients"),
               "Leave it out, or train the first steps without the section and resume from that run's "
               "checkpoint.");
  }
  const auto states = values.get<std::string>("states", "maintain");
  out.states = states == "average" ? Options::States::average
               : states == "reset" ? Options::States::reset
                                   : Options::States::maintain;
  return out;
}

// DeepSpeed reads the keys with and without their prefix.
const char* name_of(const Values& zero, const char* full, const char* without_prefix) {
  return zero.find(full) == nullptr ? without_prefix : full;
}

std::optional<int64_t> read_shard_size(const Values& zero, int stage) {
  const int64_t size = zero.get<int64_t>("mics_shard_size", -1);
  if (size == -1) {
    return std::nullopt;
  }
  const JsonNode& node = *zero.find("mics_shard_size");
  if (size < 2) {
    node.fail(concat("at least 2 ranks share one copy, found ", size),
              "Leave it out (-1) to shard among all ranks; \"stage\": 0 shards nothing.");
  }
  if (stage == 0) {
    node.fail("nothing is sharded with \"stage\": 0", "Write a stage from 1 to 3, or leave it out.");
  }
  return size;
}

zero::ZeroOptions read_zero(const Values& zero) {
  zero::ZeroOptions out;
  out.stage = static_cast<int>(zero.get<int64_t>("stage", 0));
  out.shard_size = read_shard_size(zero, out.stage);
  out.param_persistence_threshold =
      zero.get(name_of(zero, "stage3_param_persistence_threshold", "param_persistence_threshold"),
               out.param_persistence_threshold);
  out.model_persistence_threshold = zero.get("stage3_model_persistence_threshold", out.model_persistence_threshold);
  out.prefetch_elements = zero.maybe<int64_t>(name_of(zero, "stage3_prefetch_bucket_size", "prefetch_bucket_size"));
  out.max_live_elements = zero.maybe<int64_t>(name_of(zero, "stage3_max_live_parameters", "max_live_parameters"));
  return out;
}

} // namespace

EngineConfig read_deepspeed(const JsonNode& given, const AutoValues& known) {
  EngineConfig out;
  out.source = given.plain(); // "auto" included: another program may choose another value for it
  given.members();            // fails when it is not an object
  JsonNode node = given;
  fill_auto(node, known, out.notes);
  forgive_what_is_off(node, out.notes);
  check_common_mistakes(node);
  check_keys(node, "engine", "", out.notes);

  const Values values(&node, "engine");
  out.batch = read_batch(values);
  out.gradient_clipping = values.maybe<double>("gradient_clipping");
  out.optimizer = read_optimizer(values.find("optimizer"));
  out.schedule = read_schedule(values.find("scheduler"), out.optimizer, out.notes);
  out.data_parallel = read_data_parallel(values, out.notes);
  out.averaging = read_averaging(values.section("parameter_averaging"));
  out.compression = read_compression(values.section("gradient_compression"));
  out.pipeline = read_pipeline(values.section("pipeline"));
  out.activations = read_activations(values.section("activation_checkpointing"));
  out.tensor_parallel = read_tensor_parallel(values.section("tensor_parallel"));
  out.zero = read_zero(values.section("zero_optimization"));
  out.offload = read_offload(values, out.activations.uses_nvme(), out.notes);
  out.precision = read_precision(values);
  if (bf16_section(values).get("bf16_optimizer_states", false)) {
    if (!out.optimizer) {
      out.notes.push_back(concat(node.where(), ": there is no \"optimizer\": AdamW, with its states in bfloat16."));
      out.optimizer.emplace();
    }
    out.optimizer->state_type = optim::StateType::bf16;
  }
  out.step_in_backward = values.get("step_in_backward", out.step_in_backward);
  out.dataloader_drop_last = values.get("dataloader_drop_last", out.dataloader_drop_last);
  out.steps_per_print = values.maybe<int64_t>("steps_per_print");
  out.wall_clock_breakdown = values.get("wall_clock_breakdown", out.wall_clock_breakdown);
  out.memory_breakdown = values.get("memory_breakdown", out.memory_breakdown);
  out.dump_state = values.get("dump_state", out.dump_state);
  out.log_level = values.maybe<std::string>("log_level");
  out.csv_monitor = read_monitor(values.section("csv_monitor"));
  out.tensorboard = read_monitor(values.section("tensorboard"));
  out.checkpoint.tag_validation = read_tag_validation(values.section("checkpoint"));
  check_compatibility(node, node, Setting{.engine = out});
  return out;
}

} // namespace trireme::config
