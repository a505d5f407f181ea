#include <trireme/train/evaluator.h>

#include <trireme/train/evaluation.h>
#include <trireme/train/read_run.h>

#include <trireme/base/descriptor.h>
#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/units.h>
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
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenLooks{500};
constexpr int kTimeouts = 5; // times TRIREME_TIMEOUT: the time for a training to be restarted
constexpr double kDefaultTimeout = 60;

/// Traces of a running training in its run folder: the lock of its launcher or of rank 0, new lines and
/// checkpoints.
class SignsOfLife {
 public:
  explicit SignsOfLife(const fs::path& run)
      : lock_(run / "logs" / "lock"), written_{run / "metrics.jsonl", run / "checkpoints"} {
    const auto timeout = env::text("TRIREME_TIMEOUT"); // World::connect() has checked that it is a number
    patience_ = std::chrono::duration<double>(kTimeouts * (timeout ? std::stod(*timeout) : kDefaultTimeout));
  }
  /// True if there was a training, and there has been no lock and nothing new for that time. Without file locks a
  /// training may always be running.
  bool have_ended() {
    std::vector<fs::file_time_type> times;
    std::error_code none;
    for (const fs::path& path : written_) {
      times.push_back(fs::last_write_time(path, none));
    }
    const bool is_new = std::exchange(times_, times) != times;
    const bool may_be_locked = is_locked();
    seen_ = seen_ || may_be_locked || fs::exists(written_.front(), none);
    if (is_new || may_be_locked || !seen_) {
      last_ = Clock::now();
    }
    return Clock::now() - last_ > patience_;
  }
  double patience() const { return patience_.count(); }

 private:
  bool is_locked() const {
    const Descriptor file(::open(lock_.c_str(), O_RDONLY | O_CLOEXEC));
    return file && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0;
  }

  const fs::path lock_;
  const std::vector<fs::path> written_;
  std::chrono::duration<double> patience_;
  std::vector<fs::file_time_type> times_;
  Clock::time_point last_ = Clock::now();
  bool seen_ = false;
};

/// The run's full model on one rank.
class Evaluator {
 public:
  Evaluator(const TrainCommand& command, int64_t data_ranks, const Registry& registry)
      : registry_(registry),
        run_(read_run_to_train(command, registry.types(), /*has_weights=*/true)),
        run_folder_(command.out),
        checkpoints_(command.out / "checkpoints"),
        data_ranks_(data_ranks),
        signs_(command.out) {
    micro_batch_ = run_.engine.batch_for(data_ranks).micro;
    datasets_ = registry_.open_data({run_, world_, 0, data_ranks, micro_batch_, token_cache_of(command.out)});
    if (!datasets_.validation) {
      throw InputError("train", "this process is the evaluator, but the run has no validation data",
                       "Set data.validation, or start no evaluator.");
    }
  }

  int run(const fs::path& metrics) {
    const fs::path first = next(-1);
    build(first);
    monitor::MetricsWriter writer(metrics,
                                  checkpoint::step_of(first.filename().string())); // of an earlier run in this folder
    while (writer.last_step() < run_.training.steps) {
      const fs::path folder = next(writer.last_step());
      if (const auto evaluated = evaluate(folder)) {
        monitor::StepMetrics line;
        line.step = checkpoint::step_of(folder.filename().string());
        line.val_loss = evaluated->loss;
        line.val_accuracy = evaluated->accuracy;
        writer.write(line);
        log::info("step ", line.step, ": validation loss ", *line.val_loss,
                  line.val_accuracy ? concat(", accuracy ", *line.val_accuracy) : "");
      }
    }
    return 0;
  }

 private:
  // Waits for a checkpoint of a later step.
  fs::path next(int64_t step) {
    for (bool said = false;; said = true) {
      const bool have_ended = signs_.have_ended(); // before looking: the last action of a training is a checkpoint
      if (const auto newest = checkpoint::find_newest(checkpoints_);
          newest && checkpoint::step_of(newest->filename().string()) > step) {
        return *newest;
      }
      if (have_ended) {
        throw Error("train",
                    concat("the training ",
                           step < 0 ? "has saved no checkpoint"
                                    : concat("has saved nothing after step ", step, " of ", run_.training.steps),
                           ", and seems to have ended: for ", format_seconds(signs_.patience()),
                           " no process has held the lock ", (run_folder_ / "logs" / "lock").string(),
                           ", and neither metrics.jsonl nor checkpoints has changed in ", run_folder_.string()),
                    "Look at the output of its ranks. Continue it with --resume, and start the evaluator "
                    "again. It waits for five times TRIREME_TIMEOUT seconds: raise that if a step takes longer.");
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
    run_.model.init_from().clear();
    run_.model.lora().init_from.clear();
    check_samples(run_, datasets_);
    const models::ModelRanks alone; // as a default member it makes gcc 12 warn
    task_ = registry_.make_task({run_, datasets_, alone});
    options.model = task_.model;
    options.pipeline = task_.pipeline;
    options.loss = task_.loss;
    options.device = device;
    engine_ = engine::initialize(world_, options).engine;
    loader_.emplace(data::make_loader(datasets_.validation, run_.data, data::Split::validation, micro_batch_));
    batches_ = run_.training.eval_batches *
               (run_.engine.server.on() ? 1 : data_ranks_); // with workers only the first one evaluates
  }

  // Returns nothing if the checkpoint was removed meanwhile: the run keeps a limited number.
  std::optional<Evaluated> evaluate(const fs::path& folder) {
    try {
      const torch::NoGradGuard no_grad;
      const auto saved = checkpoint::Checkpoint::open(folder);
      std::set<std::string> names;
      const torch::nn::Module& model = task_.pipeline ? *task_.pipeline : *task_.model;
      const auto saved_name = [&](const std::string& name) {
        return task_.pipeline ? task_.pipeline->saved_name(name) : name;
      };
      for (const auto& item : model.named_parameters()) {
        models::load_parameter(saved, saved_name(item.key()), item.value());
        names.insert(saved_name(item.key()));
      }
      models::check_parameter_names(saved, names);
      for (const auto& item : model.named_buffers()) {
        saved.read_into(saved_name(item.key()), 0, item.value());
      }
    } catch (const Error&) {
      if (fs::exists(folder)) {
        throw;
      }
      return std::nullopt;
    }
    return train::evaluate(*engine_, task_, *loader_, batches_, world_.group());
  }

  const Registry& registry_;
  comm::World world_ = comm::World::connect();
  config::RunConfig run_;
  const fs::path run_folder_;
  const fs::path checkpoints_;
  const int64_t data_ranks_;
  SignsOfLife signs_;
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

int evaluate_checkpoints(const TrainCommand& command, const Registry& registry) {
  return Evaluator(command, env::integer("TRIREME_EVALUATOR").value(), registry)
      .run(command.out / "metrics.evaluator.jsonl");
}

} // namespace trireme::train
