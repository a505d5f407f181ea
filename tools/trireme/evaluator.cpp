#include "evaluator.h"

#include "evaluation.h"

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/folder.h>
#include <trireme/comm/world.h>
#include <trireme/config/run_file.h>
#include <trireme/data/make_dataset.h>
#include <trireme/device/choose.h>
#include <trireme/engine/initialize.h>
#include <trireme/engine/resolve_precision.h>
#include <trireme/models/checkpoint_weights.h>
#include <trireme/monitor/metrics_writer.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <set>
#include <thread>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kBetweenLooks{500};

/// The run's model in one piece on one rank.
class Evaluator {
 public:
  Evaluator(const TrainCommand& command, int64_t data_ranks) : run_(config::read_run_file(command.run_file, command.overrides)), checkpoints_(command.out / "checkpoints"), data_ranks_(data_ranks) {
    datasets_ = data::make_datasets(run_.data);
    if (!datasets_.validation) {
      throw InputError("train", "this process is the evaluator, and the run has nothing to evaluate on", "Name data.validation, or start no evaluator.");
    }
    micro_batch_ = run_.engine.batch_for(data_ranks).micro;
  }

  int run(const fs::path& metrics) {
    const fs::path first = next(-1);
    build(first);
    monitor::MetricsWriter writer(metrics, checkpoint::step_of(first.filename().string())); // of a run that was here before
    while (writer.last_step() < run_.training.steps) {
      const fs::path folder = next(writer.last_step());
      if (const auto evaluated = evaluate(folder)) {
        monitor::StepMetrics line;
        line.step = checkpoint::step_of(folder.filename().string());
        line.val_loss = evaluated->loss;
        line.val_accuracy = evaluated->accuracy;
        writer.write(line);
        log::info("step ", line.step, ": validation loss ", *line.val_loss, line.val_accuracy ? concat(", accuracy ", *line.val_accuracy) : "");
      }
    }
    return 0;
  }

 private:
  // Waits for a checkpoint of a later step.
  fs::path next(int64_t step) const {
    for (bool said = false;; said = true) {
      if (const auto newest = checkpoint::find_newest(checkpoints_); newest && checkpoint::step_of(newest->filename().string()) > step) {
        return *newest;
      }
      if (!said) {
        log::debug("waiting for a checkpoint in ", checkpoints_.string(), " after step ", step);
      }
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }

  void build(const fs::path& checkpoint) {
    const at::Device device = device::choose(run_.training.device, 0, 1);
    device::make_current(device);
    engine::InitializeOptions options;
    options.config.precision = run_.engine.precision;
    engine::resolve_precision(options.config.precision, world_.group(), device, checkpoint);
    options.config.precision.communication.reset();
    options.config.batch.micro = micro_batch_;
    options.config.optimizer = optim::OptimizerOptions{.rule = optim::SgdOptions{}}; // has no states
    options.config.seed = run_.engine.seed;
    run_.pipeline = {};
    run_.model.gpt.init_from.clear();
    run_.model.cnn.init_from.clear();
    check_samples(run_, datasets_);
    task_ = make_task(run_, datasets_);
    options.model = task_.model;
    options.loss = task_.loss;
    options.device = device;
    engine_ = engine::initialize(world_, options).engine;
    loader_.emplace(data::make_loader(datasets_.validation, run_.data, data::Split::validation, micro_batch_));
    batches_ = run_.training.eval_batches * (run_.engine.server.on() ? 1 : data_ranks_); // of workers the first evaluates alone
  }

  // Nothing where the checkpoint has been removed meanwhile: the run keeps so many.
  std::optional<Evaluated> evaluate(const fs::path& folder) {
    try {
      const torch::NoGradGuard no_grad;
      const auto saved = checkpoint::Checkpoint::open(folder);
      std::set<std::string> names;
      for (const auto& item : task_.model->named_parameters()) {
        models::load_parameter(saved, item.key(), item.value());
        names.insert(item.key());
      }
      models::check_parameter_names(saved, names);
      for (const auto& item : task_.model->named_buffers()) {
        saved.read_into(item.key(), 0, item.value());
      }
    } catch (const Error&) {
      if (fs::exists(folder)) {
        throw;
      }
      return std::nullopt;
    }
    return tools::evaluate(*engine_, task_, *loader_, batches_, world_.group());
  }

  comm::World world_ = comm::World::connect();
  config::RunConfig run_;
  const fs::path checkpoints_;
  const int64_t data_ranks_;
  int64_t micro_batch_ = 0;
  int64_t batches_ = 0; // 0: all
  data::Datasets datasets_;
  Task task_;
  std::shared_ptr<engine::Engine> engine_;
  std::optional<data::DataLoader> loader_;
};

} // namespace

bool is_evaluator() {
  return env::text("TRIREME_EVALUATOR").has_value();
}

int evaluate_checkpoints(const TrainCommand& command) {
  return Evaluator(command, env::integer("TRIREME_EVALUATOR").value()).run(command.out / "metrics.evaluator.jsonl");
}

} // namespace trireme::tools
