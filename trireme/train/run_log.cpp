#include <trireme/train/run_log.h>

#include <trireme/base/cores.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/base/units.h>
#include <trireme/generate/model_files.h>
#include <trireme/monitor/html.h>
#include <trireme/monitor/report.h>
#include <trireme/monitor/report_cards.h>

#include <torch/utils.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>

namespace trireme::train {
namespace {

constexpr std::chrono::seconds kReportEvery(10);
constexpr std::chrono::seconds kLongestWrite(60); // of run.json or a report

std::string describe_data(const data::Datasets& datasets) {
  return datasets.train ? datasets.train->describe() : datasets.loader->describe();
}

int ranks_of(const engine::Engine& engine) {
  return engine.group().size() * engine.pipe_group().size() * engine.context_group().size() *
         engine.tensor_group().size();
}

// ", 2 tensor-parallel over shm", or nothing.
std::string describe_split(const engine::Engine& engine, const config::RunConfig& run) {
  std::string text;
  if (const comm::Group& ranks = engine.tensor_group(); ranks.size() > 1) {
    text += concat(", ", ranks.size(), " tensor-parallel over ", ranks.backend(engine.device()),
                   run.parallel.sequence_parallel ? " with sequence parallelism" : "");
  }
  if (const comm::Group& ranks = engine.context_group(); ranks.size() > 1) {
    text += concat(", ", ranks.size(), " context-parallel over ", ranks.backend(engine.device()));
  }
  return text;
}

// Data-parallel ranks, or workers of parameter servers, each a separate world.
int64_t replicas_of(const engine::Engine& engine) {
  return engine.train_batch_size() / (engine.train_micro_batch_size_per_gpu() * engine.gradient_accumulation_steps());
}

// "4 replicas that average every 50 steps": separate processes.
std::string describe_replicas(const engine::Engine& engine, int64_t every) {
  const int64_t replicas = replicas_of(engine);
  return concat(replicas, replicas == 1 ? " replica that averages with others every " : " replicas that average every ",
                every, every == 1 ? " step" : " steps");
}

// "2 workers of 3 parameter servers (sync)"
std::string describe_workers(const engine::Engine& engine, const parallel::ServerOptions& servers) {
  const int64_t workers = replicas_of(engine);
  return concat(workers, workers == 1 ? " worker of " : " workers of ", servers.servers,
                servers.servers == 1 ? " parameter server (" : " parameter servers (",
                parallel::ServerOptions::name(servers.mode), ')');
}

// ", 1.2M trained", or nothing.
std::string describe_trained(const engine::Engine& engine) {
  const int64_t trained = engine.num_trained_parameters();
  return trained == engine.num_parameters() ? "" : concat(", ", format_count(trained), " trained");
}

const RunToken& checked(const RunToken& token) {
  token.check();
  return token;
}

} // namespace

RunLog::RunLog(const std::filesystem::path& folder, const config::RunConfig& run, const Task& task,
               engine::Engine& engine, const data::Datasets& datasets, std::optional<int64_t> resumed_step,
               const RunToken& token)
    : token_(checked(token)),
      folder_(folder),
      run_(run),
      task_(task),
      engine_(engine),
      datasets_(datasets),
      metrics_(folder / "metrics.jsonl", resumed_step),
      tensorboard_(folder / "tensorboard", resumed_step),
      started_(monitor::unix_seconds()),
      parameters_(engine.num_parameters()) {
  const bool served = run.engine.server.on();
  const bool elastic = run.engine.averaging.elastic;
  for (const char* file : {"report.html", "run.json"}) {
    // Rank 0 is their only writer; another worker or replica may still be writing while this one takes over.
    remove_unfinished(folder / file, served || elastic ? kLongestWrite : std::chrono::seconds(0));
  }
  write_file_atomically(folder / "run.json", run.resolved.dump(2) + "\n");
  generate::keep_model_files(run, folder, datasets, resumed_step.has_value());
  const comm::Group& group = engine.group();
  if (engine.pipe_group().size() > 1) {
    log::info(engine.pipe_group().size(), " pipeline stages over ", engine.pipe_group().backend(engine.device()),
              ", schedule ", run.parallel.schedule);
  }
  log::info(task.description, ", ", format_count(parameters_), " parameters", describe_trained(engine), "; ",
            describe_data(datasets));
  const int ranks = ranks_of(engine);
  const std::string layout = served    ? describe_workers(engine, run.engine.server)
                             : elastic ? describe_replicas(engine, run.engine.averaging.every)
                                       : concat(ranks, ranks == 1 ? " rank" : " ranks",
                                                group.size() == 1 ? ""
                                                                  : concat(", ", group.size(), " data-parallel over ",
                                                                           group.backend(engine.device())),
                                                describe_split(engine, run));
  log::info(layout, ", ", at::get_num_threads(), at::get_num_threads() == 1 ? " thread each" : " threads each",
            "; batch ", engine.train_batch_size(), " = ", engine.train_micro_batch_size_per_gpu(), " x ",
            engine.gradient_accumulation_steps(), " accumulated x ", replicas_of(engine),
            served    ? " workers"
            : elastic ? " replicas"
                      : " ranks",
            served && !run.engine.server.together() ? ", each of which steps separately" : "");
  tensorboard_.text("config", "```json\n" + run.resolved.dump(2) + "\n```", resumed_step.value_or(0));
  monitor::ProgressOptions options;
  options.total_steps = run.training.steps;
  options.first_step = resumed_step.value_or(0);
  progress_.emplace(options);
  running(resumed_step.value_or(0));
}

RunLog::~RunLog() {
  try {
    token_.check();
  } catch (const Error&) { // reported elsewhere if it ends this training
    tensorboard_.discard();
  }
}

// Called before anything is written.
void RunLog::check_token() {
  try {
    token_.check();
  } catch (const ReplacedError&) {
    progress_.reset();
    tensorboard_.discard();
    throw;
  }
}

bool RunLog::write(const std::function<void()>& action) {
  try {
    check_token();
    action();
    return true;
  } catch (const ReplacedError&) {
    throw;
  } catch (const Error& error) {
    if (!complained_) {
      log::error("the files of this run are incomplete, training goes on: ", error.what());
    }
    complained_ = true;
  }
  return false;
}

void RunLog::step(const monitor::StepMetrics& metrics) {
  write([&] {
    metrics_.write(metrics);
    tensorboard_.step(metrics);
  });
  progress_->update(metrics);
  step_ms_ += metrics.step_ms.value_or(0);
  comm_wait_ms_ += metrics.comm_wait_ms.value_or(0);
  host_syncs_ += metrics.host_syncs.value_or(0);
  ++steps_;
  const auto keep = last_;
  last_ = metrics;
  last_.val_loss = metrics.val_loss ? metrics.val_loss : keep.val_loss;
  last_.val_accuracy = metrics.val_accuracy ? metrics.val_accuracy : keep.val_accuracy;
  if (Clock::now() - reported_ > kReportEvery) {
    running(metrics.step);
  }
}

void RunLog::status(const char* text) {
  progress_->status(text);
}

void RunLog::write_report(const std::string& status, const std::string& sample) {
  const auto steps = monitor::read_metrics(folder_ / "metrics.jsonl");
  for (auto step = steps.rbegin(); step != steps.rend() && !last_.val_loss;
       ++step) { // a resumed run without steps left
    last_.val_loss = step->val_loss;
    last_.val_accuracy = step->val_accuracy;
    last_.loss = last_.loss ? last_.loss : step->loss;
  }
  monitor::RunSummary summary;
  summary.title = folder_.filename().string();
  summary.status = status;
  summary.started = monitor::format_utc(started_);
  summary.loss_unit = task_.loss_unit;
  const int replicas = engine_.group().size();
  const int stages = engine_.pipe_group().size();
  summary.ranks = ranks_of(engine_);
  summary.layout = stages == 1 ? concat("data parallel, ", engine_.group().backend(engine_.device()))
                               : concat(stages, " stages x ", replicas, replicas == 1 ? " replica" : " replicas", ", ",
                                        run_.parallel.schedule, ", ", engine_.pipe_group().backend(engine_.device()));
  summary.layout += describe_split(engine_, run_);
  if (run_.engine.server.on()) {
    summary.ranks = static_cast<int>(replicas_of(engine_));
    summary.layout = describe_workers(engine_, run_.engine.server);
  }
  summary.num_parameters = parameters_;
  summary.model = task_.description + describe_trained(engine_);
  summary.device = engine_.device().is_cpu() ? "CPU" : engine_.device().str();
  summary.device_detail = engine_.device().is_cpu() ? concat(usable_cores(), " cores") : "of rank 0";
  summary.unigram_entropy = datasets_.unigram_entropy_per_byte;
  summary.config = run_.resolved;
  summary.environment = {{"host", monitor::host_name()},
                         {"libtorch", TORCH_VERSION},
                         {"trireme", TRIREME_VERSION},
                         {"threads a rank", std::to_string(at::get_num_threads())},
                         {"data", describe_data(datasets_)}};
  if (const std::string read = describe_mixture(); !read.empty()) {
    summary.environment.emplace_back("samples read", read);
  }
  if (!sample.empty()) {
    const std::string& prompt = run_.training.sample->prompt;
    const size_t shared = sample.compare(0, prompt.size(), prompt) == 0 ? prompt.size() : 0;
    summary.samples.push_back({prompt, sample.substr(shared)});
  }
  monitor::write_report(folder_ / "report.html", summary, steps);
}

// Of each set, from the first step on.
std::string RunLog::describe_mixture() const {
  return datasets_.mixture ? datasets_.mixture->describe_first(engine_.global_steps() * engine_.train_batch_size())
                           : "";
}

void RunLog::running(int64_t step) {
  const Clock::time_point begin = Clock::now();
  if (begin - reported_ < 100 * report_took_ - kReportEvery) { // a long run that saves often
    return;
  }
  write([&] { write_report(concat("running, step ", step, ", ", monitor::format_utc(monitor::unix_seconds())), ""); });
  reported_ = Clock::now();
  report_took_ = reported_ - begin;
}

void RunLog::interrupted(const std::string& status) {
  progress_.reset();
  write([&] {
    tensorboard_.flush();
    write_report(status, "");
  });
}

void RunLog::finish(const std::string& sample) {
  progress_.reset();
  const bool reported = write([&] {
    tensorboard_.flush();
    write_report("finished", sample);
  });
  if (const std::string read = describe_mixture(); !read.empty()) {
    log::info("samples read: ", read);
  }
  if (last_.val_loss) {
    log::info(
        "validation loss ", monitor::decimals(*last_.val_loss, 3), task_.loss_unit.empty() ? "" : " ", task_.loss_unit,
        datasets_.unigram_entropy_per_byte
            ? concat(" (letter frequencies alone: ", monitor::decimals(*datasets_.unigram_entropy_per_byte, 3), ')')
            : "");
  }
  if (last_.val_accuracy) {
    log::info("validation accuracy ", monitor::decimals(*last_.val_accuracy * 100, 3), " %");
  }
  if (!sample.empty()) {
    const std::string text = monitor::clean_utf8(sample);
    log::info("the model writes:\n", std::string_view(text).substr(0, text.find_last_not_of(" \n") + 1));
  }
  if (ranks_of(engine_) > 1 && steps_ > 0) {
    const auto steps = static_cast<double>(steps_);
    log::info("communication that nothing hid: ", format_seconds(comm_wait_ms_ / steps / 1e3), " of ",
              format_seconds(step_ms_ / steps / 1e3), " a step (", std::lround(100 * comm_wait_ms_ / step_ms_), " %)");
  }
  if (last_.device_peak_bytes) {
    log::info("device memory: at most ", format_bytes(*last_.device_peak_bytes), " on a rank");
  }
  if (last_.host_syncs && steps_ > 0) {
    log::info("the host waited for the device ",
              monitor::decimals(static_cast<double>(host_syncs_) / static_cast<double>(steps_), 2), " times a step");
  }
  log::info(reported ? concat("report: ", (folder_ / "report.html").string()) : "no report could be written",
            "   checkpoints: ", (folder_ / "checkpoints").string());
}

} // namespace trireme::train
