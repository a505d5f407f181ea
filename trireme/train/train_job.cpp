#include <trireme/train/train_job.h>

#include <trireme/train/joined_job.h>
#include <trireme/train/launch_options.h>
#include <trireme/train/memory_check.h>
#include <trireme/train/offload_check.h>
#include <trireme/train/read_run.h>
#include <trireme/train/run_estimate.h>
#include <trireme/train/run_lock.h>
#include <trireme/train/tf_config.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/base/run_token.h>
#include <trireme/base/units.h>
#include <trireme/checkpoint/folder.h>
#include <trireme/config/run_file.h>
#include <trireme/launch/environment.h>
#include <trireme/launch/launcher.h>
#include <trireme/launch/signals.h>
#include <trireme/monitor/metrics.h>
#include <trireme/monitor/report.h>

#include <nlohmann/json.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <variant>

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

// Like kRestartsOfAServer, for a replica that may join and leave.
constexpr int kRestartsOfAReplica = 3;

fs::path default_out(const TrainCommand& command) {
  const std::string stem = command.run_file.stem().string();
  return fs::path("runs") / (stem == "run" && command.run_file.has_parent_path()
                                 ? command.run_file.parent_path().filename()
                                 : fs::path(stem));
}

// `slots`: of the hostfile's hosts, 0 without one.
int64_t ranks_on(const TrainCommand& command, const config::RunConfig& run, int64_t slots) {
  const int64_t ranks =
      ranks_of(run, command.run_file.string(), command.ranks, std::max<int64_t>(1, slots / ranks_of_replica(run)));
  if (slots > 0 && ranks > slots) {
    throw InputError("trireme",
                     concat(ranks, " ranks do not fit on the ", slots, " slots of ", command.places.hostfile.string()),
                     "Add hosts or slots, or ask for fewer ranks with -n or \"parallel\".");
  }
  return ranks;
}

// Never overwrites an earlier run's files unless asked to.
void check_out(const TrainCommand& command) {
  if (!command.resume && fs::exists(command.out / "checkpoints") && !fs::is_empty(command.out / "checkpoints")) {
    throw InputError("trireme", concat(command.out.string(), " already holds a run with checkpoints"),
                     "Continue it with --resume, name another folder with --out, or remove it.");
  }
}

/// The reason not to restart this job's ranks: a later job has claimed the run folder. "": none.
std::string superseded(const RunToken& token, const std::string& run_id, const fs::path& folder) {
  std::optional<RunToken::Holder> newest;
  try {
    newest = RunToken::newest(folder);
  } catch (const Error&) {
    return ""; // the ranks cannot write there either, and report it
  }
  if (!newest || newest->attempt <= token.attempt() || newest->job == run_id) {
    return "";
  }
  return concat("another training writes into ", folder.parent_path().string(), " now (", describe(*newest), ')');
}

std::vector<std::string> rank_command(const TrainCommand& command, const Program& program) {
  std::vector<std::string> words = rank_words(program);
  words.insert(words.end(), {"train", command.run_file.string(), "--out", command.out.string()});
  for (const std::string& override : command.overrides) {
    words.insert(words.end(), {"--set", override});
  }
  if (command.trace_steps > 0) {
    words.insert(words.end(), {"--trace", std::to_string(command.trace_steps)});
  }
  if (command.resume) {
    words.insert(words.end(), {"--resume", command.resume_from});
  }
  if (!command.memory_check) { // of GPUs, which ranks do
    words.emplace_back("--no-memory-check");
  }
  return words;
}

/// Chooses what runs on the remaining hosts; the samples per step stay the same.
class Shrinking {
 public:
  Shrinking(const config::RunConfig& run, int64_t full_ranks, std::vector<std::string> command)
      : run_(run),
        full_ranks_(full_ranks),
        full_(run.engine.batch_for(full_ranks / ranks_of_replica(run))),
        command_(std::move(command)) {}

  launch::Arrangement operator()(int64_t slots) const {
    launch::Arrangement plan;
    plan.command = command_;
    plan.ranks = static_cast<int>(full_ranks_);
    if (slots >= full_ranks_) {
      return plan;
    }
    const int64_t per_replica = ranks_of_replica(run_);
    const int64_t fitting = slots / per_replica;
    if (fitting == 0) {
      throw InputError("trireme",
                       concat("the model needs ", per_replica, " ranks (pipe * context * tensor), only ", slots,
                              slots == 1 ? " slot is left" : " slots are left"),
                       "Bring hosts back and continue with --resume, or cut the model into fewer parts.");
    }
    int64_t replicas = fitting;
    while (full_.train % replicas != 0) {
      --replicas;
    }
    const int64_t each = full_.train / replicas;
    int64_t accumulation = 1;
    while (each % accumulation != 0 || each / accumulation > full_.micro) {
      ++accumulation;
    }
    plan.ranks = static_cast<int>(replicas * per_replica);
    for (const auto& [key, value] : {std::pair("engine.train_batch_size", full_.train),
                                     std::pair("engine.train_micro_batch_size_per_gpu", each / accumulation),
                                     std::pair("engine.gradient_accumulation_steps", accumulation)}) {
      plan.command.insert(plan.command.end(), {"--set", concat(key, "=", value)});
    }
    if (run_.parallel.data) {
      plan.command.insert(plan.command.end(), {"--set", concat("parallel.data=", replicas)});
    }
    plan.note =
        concat("smaller world: ", plan.ranks, " of ", full_ranks_, " ranks; the batch of ", full_.train, " stays, ",
               each / accumulation, " x ", accumulation, " accumulated x ", replicas, " data-parallel");
    if (replicas < fitting) {
      plan.note += concat(" (", full_.train, " does not divide by ", fitting, ", so ", slots - plan.ranks,
                          slots - plan.ranks == 1 ? " slot stays idle)" : " slots stay idle)");
    }
    return plan;
  }

 private:
  const config::RunConfig& run_;
  int64_t full_ranks_;
  config::BatchTriple full_;
  std::vector<std::string> command_;
};

// Reads only the end of the file, which may have thousands of steps.
std::string last_part(const fs::path& path, std::streamoff most) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return "";
  }
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - most));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string tag_in(const fs::path& latest) {
  std::ifstream file(latest);
  std::string tag;
  file >> tag;
  return tag;
}

/// The step that a restart continues from.
class SavedStep {
 public:
  explicit SavedStep(const TrainCommand& command) : latest_(command.out / "checkpoints" / "latest") {
    if (command.resume && command.resume_from != "auto") {
      const fs::path from = checkpoint::checkpoints_of(fs::absolute(command.resume_from)) / "";
      const std::string tag = tag_in(from / "latest");
      began_at_ = std::max<int64_t>(0, checkpoint::step_of(tag.empty() ? from.parent_path().filename().string() : tag));
      before_ = identity();
    }
  }
  int64_t operator()() const {
    return nothing_saved() ? *began_at_ : std::max<int64_t>(0, checkpoint::step_of(tag_in(latest_)));
  }
  /// The job began at --resume PATH and has saved nothing so far.
  bool nothing_saved() const { return began_at_ && identity() == before_; }

 private:
  // Opens the file again after each save, which replaces it.
  std::array<int64_t, 3> identity() const {
    struct stat status{};
    if (::stat(latest_.c_str(), &status) != 0) {
      return {};
    }
    return {static_cast<int64_t>(status.st_ino), status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
  }

  fs::path latest_;
  std::optional<int64_t> began_at_; // of --resume PATH, until the job has saved
  std::array<int64_t, 3> before_{};
};

std::optional<launch::Progress> progress_of(const fs::path& out, int64_t saved) {
  const std::string text = last_part(out / "metrics.jsonl", 1 << 20);
  launch::Progress progress;
  bool found = false;
  for (size_t end = text.rfind('\n'); end != std::string::npos && end > 0;) {
    const size_t begin = text.rfind('\n', end - 1);
    const size_t first = begin == std::string::npos ? 0 : begin + 1;
    const auto line = monitor::parse_metrics_line(std::string_view(text).substr(first, end - first));
    end = begin;
    if (!line) {
      continue;
    }
    if (!found) {
      progress.step = line->step;
      progress.stepped_at = line->wall_time.value_or(0);
      found = true;
    }
    if (line->step <= saved) {
      break;
    }
    ++progress.unsaved_steps;
    progress.unsaved_seconds += line->step_ms.value_or(0) / 1e3;
  }
  return found ? std::optional(progress) : std::nullopt;
}

// `exit_status`: of this process.
void write_report(const fs::path& out, const launch::JobReport& report, int exit_status) {
  nlohmann::ordered_json restarts = nlohmann::ordered_json::array();
  for (const launch::Restart& restart : report.restarts) {
    restarts.push_back({{"cause", restart.cause},
                        {"noticed_at", restart.noticed_at},
                        {"down_seconds", restart.down_seconds},
                        {"steps_lost", restart.steps_lost},
                        {"redone_seconds", restart.redone_seconds}});
  }
  const bool signalled = report.received_signal != 0;
  const char* const status = report.exit_code == 0 ? (signalled ? "preempted" : "finished")
                             : signalled           ? "stopped"
                                                   : "failed";
  const nlohmann::ordered_json all = {{"status", status},
                                      {"exit_code", exit_status},
                                      {"signal", report.received_signal},
                                      {"total_seconds", report.total_seconds},
                                      {"ettr", report.ettr},
                                      {"restarts", restarts}};
  try {
    write_file_atomically(out / "launch.json",
                          all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
    if (report.exit_code != 0) {
      monitor::end_report(out / "report.html", status); // rank 0 may have been killed
    }
  } catch (const Error& error) {
    log::warning("the end of the run is not recorded: ", error.what());
  }
}

// malloc's arena per thread takes address space, and threads of transfers have one too.
void limit_arenas(const estimate::MemoryAtHand& at_hand, launch::LaunchOptions& options) {
  constexpr const char* kArenas = "MALLOC_ARENA_MAX";
  if (at_hand.process_bytes < estimate::MemoryAtHand::kUnlimited && !env::text(kArenas)) {
    options.extra_env.emplace_back(kArenas, "1");
  }
}

void make_run_folder(const TrainCommand& command) {
  std::error_code error;
  make_private_folders(command.out / "logs", error);
  if (error) {
    throw InputError("trireme", concat("cannot make the run folder ", command.out.string(), ": ", error.message()),
                     "Name another folder with --out.");
  }
}

/// This process is one rank of a job that another launcher has started: what the launcher would do for it, then
/// trireme-rank.
// DeepSpeed's default of freeze_step is longer than most runs.
void warn_of_long_warm_up(const config::RunConfig& run) {
  const optim::OptimizerOptions optimizer = run.engine.optimizer_or_adamw();
  std::optional<int64_t> freeze_step;
  if (const auto* const adam = std::get_if<optim::OneBitAdamOptions>(&optimizer.rule)) {
    freeze_step = adam->freeze_step;
  } else if (const auto* const lamb = std::get_if<optim::OneBitLambOptions>(&optimizer.rule)) {
    freeze_step = lamb->freeze_step;
  }
  if (freeze_step && *freeze_step >= run.training.steps) {
    log::warning("the warm-up of the 1-bit optimizer ends after step ", *freeze_step,
                 " (freeze_step), and the run has ", run.training.steps, ": nothing will be compressed");
  }
}

// Checks that the run file configures the servers that TF_CONFIG names.
void check_tasks(const config::RunConfig& run, const TfConfig& tasks) {
  const auto servers = std::ssize(tasks.servers);
  if (!run.engine.server.on() && tasks.task == TfConfig::Task::server) {
    throw InputError("trireme", "TF_CONFIG makes this process a parameter server, but the run file has none",
                     R"(Set "parallel": {"sync": {"kind": "server", "servers": N}}, or start no ps tasks.)");
  }
  if (run.engine.server.on() && run.engine.server.servers != servers) {
    throw InputError("trireme",
                     concat("TF_CONFIG names ", servers, servers == 1 ? " ps task" : " ps tasks",
                            ", but parallel.sync.servers is ", run.engine.server.servers),
                     "Make them equal.");
  }
}

[[noreturn]] void become_rank(TrainCommand command, const JoinedJob& job, const Program& program) {
  check_joined(command, job);
  const config::RunConfig run = read_run_to_train(command, program.types, continues(command));
  bool evaluates = false;
  if (const auto tasks = job.launcher == kTfConfig ? tf_config() : std::nullopt) {
    check_tasks(run, *tasks);
    evaluates = tasks->task == TfConfig::Task::evaluator;
    if (evaluates) {
      become_evaluator(job.ranks / ranks_of_replica(run));
    } else if (run.engine.server.on()) {
      become_task(*tasks, run.parallel.sync.transport);
    }
  } else if (run.engine.server.on() || run.engine.averaging.elastic) {
    throw InputError("trireme",
                     concat(job.launcher, " has started ", job.ranks, " ranks, and ",
                            run.engine.server.on() ? "parallel.sync asks for workers and servers"
                                                   : "replicas that come and go (\"elastic\") live by themselves"),
                     "Start the command once, without that launcher: trireme train starts both. TF_CONFIG can name "
                     "tasks that others start (docs/tensorflow_strategies.md).");
  }
  ranks_of(run, command.run_file.string(), job.ranks, 1);
  run.engine.batch_for(job.ranks / ranks_of_replica(run));
  if (command.out.empty()) {
    command.out = default_out(command);
  }
  const launch::LaunchOptions options = launch_options(command.places);
  make_run_folder(command);
  if (!evaluates) {
    check_out(command); // nothing is saved before all ranks have connected: these are an earlier run's
  }
  if (job.rank == 0 && !evaluates) {
    RunLock(command.out).keep_in_next_program();
  }
  for (const auto& [name, value] : options.extra_env) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  ::setenv("TRIREME_RUN_DIR", fs::absolute(command.out).c_str(), 1);
  if (!env::text("OMP_WAIT_POLICY")) {
    ::setenv("GOMP_SPINCOUNT", launch::kSpinCount, /*overwrite=*/0);
  }
  std::vector<std::string> words = rank_command(command, program);
  words.insert(words.end(), {"--stopped-status", std::to_string(command.stopped_status), "--failed-status",
                             std::to_string(command.failed_status)});
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  ::execv(arguments.front(), arguments.data());
  throw Error("trireme", concat("cannot start ", words.front(), ": ", std::strerror(errno)));
}

} // namespace

int train_job(TrainCommand command, const Program& program) {
  if (const auto job = joined_job()) {
    become_rank(std::move(command), *job, program);
  }
  launch::SignalWatch signals; // from now on the job can answer a request to stop
  const config::RunConfig run = read_run_to_train(command, program.types, continues(command));
  warn_of_long_warm_up(run);
  launch::LaunchOptions options = launch_options(command.places);
  int64_t slots = 0;
  for (size_t i = 0; i < options.hosts.size() && (options.max_nodes == 0 || i < static_cast<size_t>(options.max_nodes));
       ++i) {
    slots += options.hosts[i].slots;
  }
  const int64_t ranks = ranks_on(command, run, slots);
  run.engine.batch_for(ranks / ranks_of_replica(run));                 // report errors before anything starts
  if (command.memory_check && slots == 0 && plan::can_describe(run)) { // only agents know hosts, and ranks GPUs
    std::vector<std::string> overrides = command.overrides;
    const estimate::Run described =
        describe_run(with_device(run, command.run_file, overrides, config::Files::may_be_absent, program.types), ranks)
            .run;
    const estimate::MemoryAtHand at_hand = estimate::memory_at_hand();
    check_memory(described, command.run_file, overrides, ranks, at_hand, program.types);
    check_files(described);
    limit_arenas(at_hand, options);
  }
  if (command.resume && command.resume_from != "auto" && slots == 0 && !fs::exists(command.resume_from)) {
    throw InputError("trireme", concat("--resume ", command.resume_from, ": there is no such file or folder"),
                     "Name a checkpoint, or the folder that holds them.");
  }
  if (command.out.empty()) {
    command.out = default_out(command);
  }
  make_run_folder(command);
  const RunLock lock(command.out);
  check_out(command); // a job that the lock waited for may have saved
  options.ranks = static_cast<int>(ranks);
  options.log_dir = command.out / "logs";
  options.run_id = launch::random_id();
  RunToken token(options.log_dir, options.run_id);
  token.claim();
  options.extra_env.emplace_back("TRIREME_RUN_ATTEMPT", std::to_string(token.attempt()));
  options.superseded = [&] { return superseded(token, options.run_id, options.log_dir); };
  options.extra_env.emplace_back("TRIREME_RUN_DIR", fs::absolute(command.out).string());
  options.all_output = command.all_output;
  options.preemptible = true;
  options.command = rank_command(command, program);
  const bool elastic = run.engine.averaging.elastic;
  options.servers = elastic ? 1 : static_cast<int>(run.engine.server.servers);
  options.server_scheme = run.parallel.sync.transport;
  if (options.servers > 0) { // workers are dropped and servers restarted separately: no attempts of all
    if (!command.places.max_restarts) {
      options.max_restarts = elastic ? kRestartsOfAReplica * options.ranks : kRestartsOfAServer * options.servers;
    }
  } else if (slots > 0) {
    options.arrange = Shrinking(run, ranks, options.command);
  }
  const SavedStep saved(command);
  options.progress = [out = command.out, saved] { return progress_of(out, saved()); };
  launch::JobReport report;
  try {
    report = launch::run_job(options, signals);
  } catch (const Error& error) {
    report.exit_code = error.exit_code();
    if (options.superseded().empty()) {
      write_report(command.out, report, ended_with(report.exit_code));
    }
    throw;
  }
  const int status = report.received_signal != 0 && report.exit_code == 0 ? static_cast<int>(command.stopped_status)
                                                                          : report.exit_code;
  if (options.superseded().empty()) {
    write_report(command.out, report, ended_with(status));
  }
  if (report.received_signal != 0 && (report.exit_code != 0 || report.not_begun)) {
    const int64_t step = saved();
    const bool exports = step >= run.training.steps && !run.training.export_to.empty();
    log::info(saved.nothing_saved()
                  ? concat("stopped before anything was saved: begin again with --resume ", command.resume_from)
              : exports  ? concat("stopped; all steps are saved: --resume writes ", run.training.export_to.string())
              : step > 0 ? concat("stopped; step ", step, " is saved: continue with --resume")
                         : "stopped before anything was saved");
  }
  return status;
}

} // namespace trireme::train
