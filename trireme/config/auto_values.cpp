#include <trireme/config/auto_values.h>

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/base/text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>

namespace trireme::config {
namespace {

constexpr std::string_view kTrainBatch = "train_batch_size";
constexpr std::string_view kMicroBatch = "train_micro_batch_size_per_gpu";
constexpr std::string_view kLearningRate = "optimizer.params.lr";
constexpr std::string_view kAbsent = "null"; // counts as absent

bool is_auto(const JsonNode* node) {
  return node != nullptr && node->kind() == JsonNode::Kind::string && node->as_string() == "auto";
}

bool is_given(const JsonNode* node) {
  return node != nullptr && !node->is_null() && !is_auto(node);
}

// 5e-05, not 5.0000000000000002e-05.
std::string text_of(double value) {
  return nlohmann::json(value).dump();
}

class Filler {
 public:
  Filler(JsonNode& engine, const AutoValues& known) : engine_(engine), known_(known) {}

  void fill() {
    fill_batch();
    fill("gradient_clipping", "1.0");
    fill(kLearningRate, text_of(known_.lr));
    for (const char* name : {"betas", "eps", "weight_decay"}) {
      fill(concat("optimizer.params.", name), kAbsent);
    }
    fill_scheduler();
    fill_zero();
    fill("fp16.enabled", "false");
  }

  const std::vector<std::string>& filled() const { return filled_; }

 private:
  void fill(std::string_view path, std::string_view value) {
    JsonNode* node = engine_.at(path);
    if (is_auto(node)) {
      node->replace(value);
      filled_.push_back(concat(path, value == kAbsent ? " left out" : concat(" = ", value)));
    }
  }

  // Numbers decide over "auto"; without any, the micro-batch is the Trainer's.
  void fill_batch() {
    if (!is_given(engine_.at(kTrainBatch)) && !is_given(engine_.at(kMicroBatch)) &&
        (is_auto(engine_.at(kTrainBatch)) || is_auto(engine_.at(kMicroBatch)))) {
      if (engine_.at(kMicroBatch) == nullptr) {
        engine_.set(kMicroBatch, "\"auto\"");
      }
      fill(kMicroBatch, std::to_string(known_.micro_batch));
    }
    for (const std::string_view path : {kTrainBatch, kMicroBatch, std::string_view("gradient_accumulation_steps")}) {
      fill(path, kAbsent);
    }
  }

  void fill_scheduler() {
    fill("scheduler.params.warmup_min_lr", "0.0");
    JsonNode* lr = engine_.at(kLearningRate);
    fill("scheduler.params.warmup_max_lr", is_given(lr) ? lr->plain().dump() : std::string(kAbsent));
    fill("scheduler.params.warmup_num_steps", std::to_string(known_.warmup_steps));
    JsonNode* total = engine_.at("scheduler.params.total_num_steps");
    if (is_auto(total) && !known_.steps) {
      total->fail("\"auto\" stands for the steps of the run, which a configuration alone does not know",
                  "Write a number, or say it in the program: read_config(file, {.steps = 1000}).");
    }
    fill("scheduler.params.total_num_steps", std::to_string(known_.steps.value_or(0)));
  }

  void fill_zero() {
    const auto of_width = [&](const char* name, double factor, bool squared) {
      const auto width = static_cast<double>(known_.hidden.value_or(0));
      const auto value = static_cast<int64_t>(std::min(factor * width * (squared ? width : 1), 1e18));
      fill(concat("zero_optimization.", name), known_.hidden ? std::to_string(value) : std::string(kAbsent));
    };
    of_width("reduce_bucket_size", 1, true);
    of_width("stage3_prefetch_bucket_size", 0.9, true);
    of_width("prefetch_bucket_size", 0.9, true);
    of_width("stage3_param_persistence_threshold", 10, false);
    of_width("param_persistence_threshold", 10, false);
    fill("zero_optimization.stage3_max_live_parameters", kAbsent);
    fill("zero_optimization.max_live_parameters", kAbsent);
  }

  JsonNode& engine_;
  const AutoValues& known_;
  std::vector<std::string> filled_;
};

} // namespace

void fill_auto(JsonNode& engine, const AutoValues& known, std::vector<std::string>& notes) {
  Filler filler(engine, known);
  filler.fill();
  if (!filler.filled().empty()) {
    notes.push_back(concat(engine.where(), ": \"auto\" became ", join(filler.filled(), ", "), "."));
  }
}

} // namespace trireme::config
