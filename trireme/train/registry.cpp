#include <trireme/train/registry.h>

#include <trireme/base/error.h>
#include <trireme/data/tokenize/ending_signals.h>
#include <trireme/engine/preemption.h>
#include <trireme/engine/same_data.h>
#include <trireme/engine/same_options.h>
#include <trireme/train/freeze.h>

#include <algorithm>

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

using nlohmann::ordered_json;

void check_name(const std::string& type, const std::vector<config::RunType>& there) {
  const bool is_taken = std::ranges::any_of(there, [&](const config::RunType& other) { return other.name == type; });
  if (type.empty() || is_taken) {
    throw InputError("registry", concat("the type \"", type, "\" is ", type.empty() ? "no name" : "there already"),
                     "Register each type once, under a name of its own.");
  }
}

// Marks the key "type" as read.
Keys keys_of(const JsonNode& section, const config::RunPaths& paths) {
  Keys keys(section, paths);
  keys.find("type");
  return keys;
}

// SIGINT ends a rank at once, but not while it tokenizes.
void prepare_tokens(const DataContext& context) {
  const data::EndingSignals interrupt({SIGINT});
  const auto stop = [] { return engine::Preemption::asked() != 0 || data::EndingSignals::asked() != 0; };
  data::prepare_tokens(context.run.data, context.token_cache, stop);
  if (data::EndingSignals::asked() != 0) {
    throw Error("data", "asked to end after tokenizing");
  }
}

} // namespace

int64_t Keys::at_least(int64_t least, const std::string& key, int64_t default_value) {
  const int64_t value = get(key, default_value);
  if (value < least) {
    fail(key, concat("must be a whole number >= ", least, ", found ", value));
  }
  return value;
}

fs::path Keys::path(const std::string& key) {
  find(key);
  const fs::path path = paths_.one(node(), key.c_str());
  if (!path.empty()) {
    changed_[key] = path.string();
  }
  return path;
}

std::vector<fs::path> Keys::paths(const std::string& key) {
  find(key);
  std::vector<fs::path> all = paths_.all(node(), key.c_str());
  if (!all.empty()) {
    changed_[key] = config::texts_of(all);
  }
  return all;
}

void Keys::fail(const std::string& key, const std::string& happened, const std::string& next) const {
  const JsonNode* found = node().find(key);
  (found == nullptr ? node() : *found).fail(happened, next);
}

ordered_json Keys::resolved() const {
  ordered_json out = node().plain();
  out.update(changed_);
  return out;
}

Task ModelType::make(const ModelContext& context) const {
  Task task;
  task.description = context.run.model.type;
  const auto put = [&task](const auto& made) {
    task.tokens_per_sample = made.tokens_per_sample;
    task.loss_divisor = made.loss_divisor;
    task.loss_unit = made.loss_unit;
  };
  if (has_layers()) {
    Layers made = layers_(context);
    put(made);
    task.count_right_of = std::move(made.count_right);
    task.pipeline = std::make_shared<pipeline::PipelineModule>(
        frozen(context.run.training.freeze, std::move(made.layers)), std::move(made.loss), context.run.pipeline);
    task.pipeline->set_sample_inputs(sample_inputs(context.data));
    return task;
  }
  Model made = model_(context);
  put(made);
  if (made.module == nullptr || !made.loss) {
    throw InputError("registry", concat("the model type \"", task.description, "\" made no module, or no loss"),
                     "Set Model::module and Model::loss.");
  }
  task.model = std::move(made.module);
  task.loss = std::move(made.loss);
  task.count_right = std::move(made.count_right);
  return task;
}

Registry::Registry()
    : types_(config::built_in_types()),
      models_{{"gpt", language_task},
              {"llama", language_task},
              {"bert", bert_task},
              {"cnn", cnn_task},
              {"alexnet", alexnet_task}} {}

void Registry::model(const std::string& type, ReadModel read) {
  check_name(type, types_.models);
  const auto read_section = [read = std::move(read)](const JsonNode& section, const config::RunPaths& paths,
                                                     config::RunConfig& run) {
    Keys keys = keys_of(section, paths);
    auto made = std::make_shared<const ModelType>(read(keys));
    keys.finish();
    run.model.kind = config::ModelConfig::Kind::of_program;
    run.model.traits = {.layers = made->has_layers(),
                        .only_layers = made->has_layers(),
                        .tensor = made->tensor,
                        .context = made->context};
    run.model.describe = made->describe;
    run.model.own = {made, keys.resolved()};
  };
  types_.models.push_back({.name = type,
                           .read = read_section,
                           .write = [](const config::RunConfig& run) { return run.model.own.resolved; },
                           .of_program = true});
  models_[type] = [](const ModelContext& context) {
    return std::static_pointer_cast<const ModelType>(context.run.model.own.made)->make(context);
  };
}

void Registry::data(const std::string& type, ReadData read) {
  check_name(type, types_.data);
  const auto read_section = [read = std::move(read)](const JsonNode& section, const config::RunPaths& paths,
                                                     config::RunConfig& run) {
    Keys keys = keys_of(section, paths);
    run.data.kind = data::DataOptions::Kind::of_program;
    run.data.shuffle = keys.get("shuffle", run.data.shuffle);
    run.data.prefetch = keys.at_least(0, "prefetch", run.data.prefetch);
    run.data.sequence_length = run.model.shape().sequence_length;
    auto made = std::make_shared<const MakeData>(read(keys));
    keys.finish();
    run.own_data = {made, keys.resolved()};
  };
  types_.data.push_back({.name = type,
                         .read = read_section,
                         .write = [](const config::RunConfig& run) { return run.own_data.resolved; },
                         .of_program = true});
}

Task Registry::make_task(const ModelContext& context) const {
  Task task = models_.at(context.run.model.type)(context);
  if (task.model) {
    freeze(context.run.training.freeze, *task.model);
  }
  return task;
}

data::Datasets Registry::open_data(const DataContext& context) const {
  data::Datasets datasets;
  comm::World& world = context.world;
  if (data::has_texts(context.run.data) && !context.token_cache.empty()) {
    engine::call_on_each_host(world, [&] { prepare_tokens(context); });
  }
  engine::check_together(world.group(), [&] {
    const config::RunConfig& run = context.run;
    if (run.data.kind != data::DataOptions::Kind::of_program) { // the ranks of a host divide the check of its tokens
      datasets = data::make_datasets(run.data, {world.local_rank(), world.local_size()}, context.token_cache);
      return;
    }
    datasets = (*std::static_pointer_cast<const MakeData>(run.own_data.made))(context);
    if ((datasets.train == nullptr) == (datasets.loader == nullptr)) {
      throw InputError("registry", "the program's data type must make either a data set (train) or a loader");
    }
    if (run.training.eval_every > 0 && datasets.validation == nullptr) {
      throw InputError("train", "training.eval_every is set, and the program's data type makes no validation data",
                       "Set Datasets::validation, or leave eval_every out.");
    }
  });
  engine::check_same_data(world.group(), datasets.validation.get(), "the validation data");
  return datasets;
}

} // namespace trireme::train
