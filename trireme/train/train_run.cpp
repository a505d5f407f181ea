#include <trireme/train/train_run.h>

#include <trireme/train/choose_device.h>
#include <trireme/train/device_room.h>
#include <trireme/train/disk_report.h>
#include <trireme/train/evaluation.h>
#include <trireme/train/join_traces.h>
#include <trireme/train/offload_check.h>
#include <trireme/train/read_run.h>
#include <trireme/train/registry.h>
#include <trireme/train/run_estimate.h>
#include <trireme/train/run_start.h>
#include <trireme/train/run_writer.h>
#include <trireme/train/sample.h>
#include <trireme/train/server_roles.h>
#include <trireme/train/step_speed.h>
#include <trireme/train/traffic_meter.h>

#include <trireme/base/env.h>
#include <trireme/base/fault.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/base/units.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/comm/world.h>
#include <trireme/config/run_file.h>
#include <trireme/data/make_dataset.h>
#include <trireme/data/tokenizer.h>
#include <trireme/engine/initialize.h>
#include <trireme/engine/make_store.h>
#include <trireme/engine/peak_memory.h>
#include <trireme/engine/preemption.h>
#include <trireme/engine/resolve_precision.h>
#include <trireme/engine/same_options.h>
#include <trireme/engine/step_lines.h>
#include <trireme/generate/export_model.h>
#include <trireme/monitor/chrome_trace.h>
#include <trireme/shards/zero/init.h>

#include <torch/nn/module.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <optional>

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

class TrainRun {
 public:
  TrainRun(const TrainCommand& command, const Registry& registry, comm::World& world, std::optional<at::Device> device)
      : command_(command),
        registry_(registry),
        world_(world),
        run_(read_run_to_train(command, registry.types(), continues(command))),
        device_(device ? *device : choose_device(run_.training, world_)),
        mesh_(make_mesh()),
        writer_(command.out, worker_ ? std::optional(worker_->worker) : std::nullopt),
        start_(begin()),
        datasets_(open_data()),
        task_(build_task()) {
    engine::InitializeOptions options;
    options.model = task_.model;
    options.loss = task_.loss;
    options.pipeline = task_.pipeline;
    options.config = run_.engine;
    options.config.notes = run_.notes; // with the engine's
    options.device = device_;
    options.cuda_graph = cuda_graph();
    options.config.dataloader_drop_last = run_.data.drop_last;
    options.config.seed = run_.data.seed;
    options.training_data = datasets_.train;
    options.training_loader = datasets_.loader;
    options.shuffle = run_.data.shuffle && datasets_.mixture == nullptr; // a mixture shuffles its sets
    options.prefetch = run_.data.prefetch;
    options.stored_config = run_.resolved;
    options.mesh = mesh_;
    options.sequence_parallel = run_.parallel.sequence_parallel;
    if (worker_) {
      options.sync = worker_sync(run_.engine, *worker_);
    }
    options.run_token = writer_.token();
    engine_ = engine::initialize(world, options).engine;
    resume();
    if (datasets_.validation) { // a silent worker may have to report later
      validation_.emplace(data::make_loader(datasets_.validation, run_.data, data::Split::validation,
                                            engine_->train_micro_batch_size_per_gpu(), engine_->group().rank(),
                                            engine_->group().size()));
    }
    others_are_done_ = is_done_by_others();
    if (is_first()) {
      writer_.begin(run_, task_, *engine_, datasets_, resumed_step_);
      speed_.compare(run_, task_, *engine_, datasets_, ranks_of_run());
    }
  }

  int train();

 private:
  /// True for all but one worker. Workers of parameter servers are separate worlds, and only the first of them
  /// evaluates, saves and writes: the present one with the lowest number; for replicas that join and leave the longest
  /// present one.
  bool is_silent() const {
    return worker_ && (!engine_->workers()->is_first() || others_are_done_ || writer_.handed_over());
  }
  /// True for the rank that writes.
  bool is_first() const { return world_.rank() == 0 && !is_silent(); }
  /// True for one of several replicas that may be lost and join.
  bool comes_and_goes() const { return worker_ && run_.engine.averaging.elastic; }
  bool is_done_by_others() const;
  void share_duties(bool at_the_end = false);
  /// Number of all ranks, including those of other workers and replicas: they divide the samples of a step.
  int64_t ranks_of_run() const { return worker_ ? worker_->workers * run_.parallel.ranks_of_replica() : world_.size(); }
  bool shards_parameters() const {
    const int ranks = mesh_.group({mesh::Axis::data, mesh::Axis::context}).size();
    return engine::sharding_of(run_.engine, ranks, device_).parameters;
  }
  mesh::Mesh make_mesh();
  data::Datasets open_data();
  Task build_task();
  config::CudaGraph cuda_graph() const;
  std::optional<RunStart> begin() const;
  void resume();
  void save();
  monitor::StepMetrics metrics();
  void evaluate(monitor::StepMetrics& metrics);
  void measure_memory();
  std::string write_sample();
  std::string next_run() const;
  int leave();
  // True if `every` divides one of the steps (before, step].
  static bool due(int64_t before, int64_t step, int64_t every) { return every > 0 && step / every > before / every; }

  const TrainCommand& command_;
  const Registry& registry_;
  comm::World& world_;
  const std::optional<WorkerPlace> worker_ = worker_of_environment();
  const std::string job_ = env::text("TRIREME_RUN_ID").value_or("");
  config::RunConfig run_;
  at::Device device_;
  mesh::Mesh mesh_;
  RunWriter writer_;
  std::optional<RunStart> start_;                // absent: from the beginning
  std::optional<config::RunConfig> resumed_run_; // what a model is built of whose weights are in a checkpoint
  data::Datasets datasets_;
  Task task_;
  std::shared_ptr<engine::Engine> engine_;
  std::optional<data::DataLoader> validation_;
  std::optional<int64_t> resumed_step_;
  int64_t last_saved_ = -1;
  bool others_are_done_ = false; // the previous worker has reported and saved the last step, and left
  StepSpeed speed_;
  TrafficMeter traffic_;
  engine::StepLines lines_{[this](monitor::StepMetrics& line) {
    line.loss = *line.loss / task_.loss_divisor;
    writer_.with_log([&](RunLog& log) { log.step(line); });
  }};
  int64_t peak_rss_ = 0;
  std::optional<int64_t> device_peak_;
  std::optional<std::string> failed_save_;
};

mesh::Mesh TrainRun::make_mesh() {
  const config::ParallelConfig& parallel = run_.parallel;
  return mesh::training_mesh(world_.group(),
                             {.pipe = static_cast<int>(parallel.pipe),
                              .data = parallel.data && !worker_ ? static_cast<int>(*parallel.data) : mesh::kRest,
                              .context = static_cast<int>(parallel.context),
                              .tensor = static_cast<int>(parallel.tensor)});
}

data::Datasets TrainRun::open_data() {
  DataContext context{run_, world_};
  const comm::Group group = mesh_.group(mesh::Axis::data);
  context.rank = group.rank() + (worker_ ? worker_->worker : 0);
  context.replicas = group.size() * (worker_ ? worker_->workers : 1);
  context.micro_batch = run_.engine.batch_for(context.replicas).micro;
  context.token_cache = token_cache_of(command_.out);
  return registry_.open_data(context);
}

// "auto" is off until a GPU has run it.
config::CudaGraph TrainRun::cuda_graph() const {
  return run_.training.cuda_graph == config::CudaGraph::on ? config::CudaGraph::on : config::CudaGraph::off;
}

Task TrainRun::build_task() {
  engine::resolve_precision(run_.engine.precision, world_.group(), device_,
                            start_ ? std::optional(start_->from) : std::nullopt);
  check_device_room({command_, run_, registry_.types(), ranks_of_run()}, world_, device_);
  torch::manual_seed(run_.training.seed + (worker_ ? worker_->worker : 0) +
                     world_.rank() / mesh_.shape().size(mesh::Axis::tensor)); // tensor ranks draw the same numbers
  if (run_.engine.uses_files() && plan::can_describe(run_)) {
    estimate::Run described = describe_run(run_, ranks_of_run()).run;
    described.on_device = !device_.is_cpu();
    report_disks(described, world_);
  }
  std::optional<zero::Init> init;
  if (shards_parameters() && !run_.builds_layers()) { // initialize() shards a list of layers as it builds it
    std::shared_ptr<bucket::StateStore> store;
    engine::check_together(world_.group(), [&] { store = engine::make_building_store(run_.engine, world_.rank()); });
    init.emplace(mesh_.group({mesh::Axis::data, mesh::Axis::context}), run_.engine.precision.compute, device_, store);
  }
  if (fs::path& from = run_.model.init_from(); !from.empty() && checkpoint::find_newest(from, world_.group())) {
    from = checkpoint::Checkpoint::open(from, "", world_.group())
               .folder(); // a run may be saving there: use the same for all
    check_alpha(run_, from, world_.group());
  }
  check_samples(run_, datasets_);
  models::ModelRanks ranks;
  ranks.tensor = {mesh_.group(mesh::Axis::tensor), run_.parallel.sequence_parallel};
  ranks.context = mesh_.group(mesh::Axis::context);
  ranks.context_kind = run_.parallel.context_kind;
  if (!start_ || worker_ || !checkpoint::find_newest(start_->from, world_.group())) {
    if (start_) {
      check_first_weights(run_, world_.group());
    }
    Task task = registry_.make_task({run_, datasets_, ranks});
    note_other_base(run_);
    return task;
  }
  resumed_run_ = run_;
  resumed_run_->model.init_from().clear(); // the checkpoint has the weights
  resumed_run_->model.lora().init_from.clear();
  return registry_.make_task({*resumed_run_, datasets_, ranks});
}

// Claims the run folder before reading anything, so that a training still running elsewhere stops saving.
std::optional<RunStart> TrainRun::begin() const {
  engine::check_together(world_.group(), [&] {
    if (world_.rank() == 0 && !run_.training.export_to.empty() && !env::flag("TRIREME_RESTART")) {
      check_export(run_, command_.out);
    }
    if (!worker_ && world_.rank() == 0) { // a worker claims it when it becomes the first
      writer_.token()->claim();
    }
  });
  return find_start(command_, job_, world_.group());
}

void TrainRun::resume() {
  if (comes_and_goes() && engine_->workers()->join()) {
    resumed_step_ = engine_->global_steps();
    log::info("replica ", worker_->worker, " goes on at step ", *resumed_step_, ", where the others are");
    return;
  }
  const int64_t step = worker_ ? engine_->workers()->step() : 0;
  if (worker_ && (env::flag("TRIREME_RESTART") || !start_) && step > 0) {
    // The others have continued; so does a worker that is restarted or joins late.
    engine_->workers()->begin_at(step);
    resumed_step_ = step;
    log::info("worker ", worker_->worker, " goes on at step ", step, ", where its servers are");
    return;
  }
  if (!start_) {
    return;
  }
  check_alpha(run_, start_->from, world_.group());
  if (load_checkpoint(*engine_, run_, start_->from, world_.group())) {
    resumed_step_ = engine_->global_steps();
    last_saved_ =
        start_->elsewhere ? -1 : *resumed_step_; // the newest checkpoint of the run folder is another one, or missing
    if (*resumed_step_ >= run_.training.steps) {
      log::info("all ", run_.training.steps, " steps are done already; raise training.steps to continue");
    }
  } else if (start_->elsewhere) {
    throw InputError("train", concat("there is no checkpoint in ", start_->from.string()),
                     "Name a checkpoint, or the folder that holds them.");
  } else if (resumed_run_) { // built without initial weights
    throw Error("train", concat("the checkpoint in ", start_->from.string(), " was removed while the model was built"),
                "Start again.");
  } else {
    log::info("no checkpoint in ", start_->from.string(), ": starting at step 1");
  }
}

// A full disk does not end the training: warns, continues, and fails at the end if the disk is still full.
void TrainRun::save() {
  lines_.finish();
  if (last_saved_ == engine_->global_steps() || is_silent()) {
    return;
  }
  writer_.status("saving checkpoint");
  try {
    writer_.write([&] {
      engine_->save_checkpoint(command_.out / "checkpoints", "", {{kJob, job_}}, run_.training.keep_checkpoints);
      last_saved_ = engine_->global_steps();
      failed_save_.reset();
    });
    writer_.with_log([&](RunLog& log) { log.running(last_saved_); });
  } catch (const PeerError&) {
    throw;
  } catch (const Error& error) {
    failed_save_ = error.what();
    if (world_.rank() == 0) {
      const bool goes_on = engine_->global_steps() < run_.training.steps && !engine_->stop_agreed();
      log::error("checkpoint at step ", engine_->global_steps(), " failed", goes_on ? ", training goes on: " : ": ",
                 error.what());
    }
  }
  traffic_.skip_files(*engine_);
  writer_.status("");
  speed_.begin();
}

void TrainRun::measure_memory() {
  constexpr int64_t kUnknown = -1;
  const auto device = engine_->device_memory();
  at::Tensor peak = torch::tensor({engine::peak_memory_bytes(), device ? device->peak : kUnknown}, torch::kInt64);
  world_.group().all_reduce(peak, comm::ReduceOp::max, "peak memory").wait();
  peak_rss_ = peak[0].item<int64_t>();
  device_peak_ = peak[1].item<int64_t>() == kUnknown ? std::nullopt : std::optional(peak[1].item<int64_t>());
  speed_.begin();
}

monitor::StepMetrics TrainRun::metrics() {
  monitor::StepMetrics m;
  m.step = engine_->global_steps();
  speed_.end(m, static_cast<double>(engine_->train_batch_size()), static_cast<double>(task_.tokens_per_sample));
  m.comm_wait_ms = engine_->times().exposed_communication * 1e3;
  m.peak_rss_bytes = peak_rss_;
  m.device_peak_bytes = device_peak_;
  if (!engine_->device().is_cpu()) {
    m.host_syncs = engine_->host_syncs();
  }
  if (engine_->activations() != nullptr) {
    m.activation_bytes = engine_->activations()->peak_bytes();
  }
  traffic_.measure(*engine_, m);
  return m;
}

void TrainRun::evaluate(monitor::StepMetrics& metrics) {
  if (!validation_ || is_silent()) {
    return;
  }
  writer_.status("evaluating");
  const Evaluated evaluated =
      train::evaluate(*engine_, task_, *validation_, run_.training.eval_batches, world_.group());
  metrics.val_loss = evaluated.loss;
  metrics.val_accuracy = evaluated.accuracy;
  if (world_.rank() == 0 && !std::isfinite(*metrics.val_loss)) {
    log::warning("the validation loss at step ", engine_->global_steps(),
                 " is not finite: lower the learning rate, or go back to an earlier checkpoint");
  }
  traffic_.skip(*engine_);
  writer_.status("");
  speed_.begin();
}

std::string TrainRun::write_sample() {
  const bool has_all = task_.language && !shards_parameters() && run_.parallel.tensor <= 1 &&
                       run_.parallel.context <= 1; // otherwise the last checkpoint has them
  if (!run_.training.sample || !task_.language_options || !datasets_.tokenizer || (!has_all && failed_save_)) {
    return "";
  }
  try {
    return sample_of(run_, task_, *datasets_.tokenizer,
                     has_all ? std::nullopt : std::optional(command_.out / "checkpoints"));
  } catch (const InputError& error) { // a tokenizer that is read now has changed; all else is saved
    log::warning("no sample is written: ", error.what());
    return "";
  }
}

// Retries a failed save.
std::string TrainRun::next_run() const {
  return last_saved_ < 0 ? "Fix that and run again."
                         : concat("Fix that and continue from step ", last_saved_, " with --resume.");
}

// The ranks were asked to stop and agree on the step. Saves the checkpoint; other work due at this step waits for the
// next run.
int TrainRun::leave() {
  save(); // first, because there is little time
  if (monitor::tracer().on()) {
    join_traces(world_, command_.out);
  }
  const int64_t step = engine_->global_steps();
  writer_.with_log([&](RunLog& log) { log.interrupted(concat("preempted at step ", step)); });
  if (failed_save_) {
    throw Error("train",
                concat("stopped by ", engine::Preemption::reason(), " at step ", step,
                       ", which could not be saved: ", *failed_save_),
                next_run());
  }
  log::info("stopped by ", engine::Preemption::reason(), " at step ", step, "; continue with --resume");
  return static_cast<int>(command_.stopped_status);
}

// Workers that do not wait for each other may become first because the previous one has finished.
bool TrainRun::is_done_by_others() const {
  if (!worker_ || comes_and_goes() || worker_->worker == 0 || !engine_->workers()->is_first()) {
    return false;
  }
  const auto saved = saved_by(job_, command_.out / "checkpoints", world_.group());
  return saved && checkpoint::Checkpoint::open(*saved, "", world_.group()).step() >= run_.training.steps;
}

// Another worker may have become first: at an averaging step of replicas, or because a worker with a lower number has
// left or joined.
void TrainRun::share_duties(bool at_the_end) {
  // Servers name the first worker in every step; replicas agree on theirs at averaging steps, the last of which
  // decides.
  writer_.note_first(!worker_ || engine_->workers()->is_first(), at_the_end || !comes_and_goes());
  if (!worker_ || is_first() == writer_.writes()) {
    return;
  }
  if (!writer_.writes() && (others_are_done_ = is_done_by_others())) {
    return;
  }
  // A worker with a lower number has joined again, or this one was so late that the others continued without it.
  if (writer_.writes()) {
    writer_.stop();
    return;
  }
  log::info(comes_and_goes() ? "replica " : "worker ", worker_->worker, " reports, evaluates and saves from step ",
            engine_->global_steps(), " on");
  writer_.begin(run_, task_, *engine_, datasets_, engine_->global_steps() - 1);
}

int TrainRun::train() {
  const int64_t steps = run_.training.steps;
  measure_memory();
  traffic_.skip(*engine_);
  if (command_.trace_steps > 0 && !is_silent()) {
    monitor::tracer().start(world_.rank());
  }
  for (const int64_t first = engine_->global_steps(); engine_->global_steps() < steps;) {
    const int64_t before = engine_->global_steps();
    engine_->train_batch();
    share_duties();
    const int64_t step = engine_->global_steps();
    monitor::StepMetrics m = metrics();
    if (engine_->stop_agreed() && step < steps) {
      lines_.add(*engine_, m);
      return leave();
    }
    const bool evaluates = due(before, step, run_.training.eval_every) || step >= steps;
    if (evaluates) {
      evaluate(m);
    }
    if (evaluates || before == first) { // the first step touches gradients and states
      measure_memory();
      traffic_.skip(*engine_);
      m.peak_rss_bytes = peak_rss_;
      m.device_peak_bytes = device_peak_;
    }
    lines_.add(*engine_, m);
    if (due(before, step, run_.training.checkpoint_every) && step < steps) { // the last one follows the loop
      save();
    }
    if (monitor::tracer().on() && step >= first + command_.trace_steps && step < steps) {
      writer_.token()->check();
      join_traces(world_, command_.out);
    }
  }
  share_duties(true);
  while (true) {
    if (!is_silent()) {
      save(); // before anything can fail
      if (monitor::tracer().on()) {
        writer_.token()->check();
        join_traces(world_, command_.out);
      }
      if (!failed_save_) {
        writer_.write([&] { export_run(run_, command_.out, world_, worker_.has_value()); });
      }
      writer_.with_log([&](RunLog& log) { log.finish(write_sample()); });
      if (failed_save_) {
        throw NotSavedError("the last checkpoint could not be saved", *failed_save_, next_run(), worker_.has_value());
      }
    }
    if (!worker_ || engine_->workers()->finish(!writer_.handed_over())) { // all is saved: joining replicas may end
      return 0;
    }
    share_duties(true); // the writer was lost since the last averaging step; this one has the same model
    if (resumed_step_ && engine_->global_steps() == *resumed_step_) {
      continue; // it made no step of its own to report
    }
    monitor::StepMetrics m = metrics();
    evaluate(m);
    lines_.add(*engine_, m);
  }
}

} // namespace

int train(const TrainCommand& command, const Registry& registry, comm::World& world, std::optional<at::Device> device) {
  fault::set_step(0); // exchanges before the first step do not belong to it
  return TrainRun(command, registry, world, device).train();
}

} // namespace trireme::train
