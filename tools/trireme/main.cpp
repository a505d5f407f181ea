// `trireme`: the program people type. It has no libtorch in it, so it starts in
// milliseconds; what needs libtorch is done by `trireme-rank` beside it.
#include "commands.h"
#include "fetch_data.h"
#include "show_schedule.h"

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/config/run_file.h>
#include <trireme/launch/launcher.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

fs::path rank_program() {
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / "trireme-rank";
  if (!fs::exists(program)) {
    throw Error("trireme", concat(program.string(), " is missing"), "It belongs beside trireme; build or install both.");
  }
  return program;
}

// Becomes trireme-rank with the same arguments.
[[noreturn]] void hand_over(char** argv) {
  const std::string program = rank_program().string();
  argv[0] = const_cast<char*>(program.c_str());
  ::execv(program.c_str(), argv);
  throw Error("trireme", concat("cannot start ", program, ": ", std::strerror(errno)));
}

fs::path default_out(const TrainCommand& command) {
  const std::string stem = command.run_file.stem().string();
  return fs::path("runs") / (stem == "run" && command.run_file.has_parent_path() ? command.run_file.parent_path().filename() : fs::path(stem));
}

int64_t ranks_of(const TrainCommand& command, const config::RunConfig& run) {
  const int64_t per_replica = run.parallel.pipe * run.parallel.tensor;
  const int64_t ranks = command.ranks > 0 ? command.ranks : per_replica * run.parallel.data.value_or(1);
  if (ranks % per_replica != 0) {
    throw InputError("trireme",
                     concat("-n ", ranks, " ranks cannot be divided among ", per_replica, run.parallel.tensor == 1 ? " pipeline stages" : " ranks of a replica (pipe * tensor)"),
                     concat("Use -n ", per_replica, ", ", 2 * per_replica, " or another multiple, or set parallel.pipe to a divisor of ", ranks, '.'));
  }
  if (run.parallel.data && ranks != per_replica * *run.parallel.data) {
    throw InputError("trireme",
                     concat("-n ", ranks, " does not fit \"parallel\" in ", command.run_file.string(), ": pipe * tensor * data = ",
                            per_replica * *run.parallel.data),
                     R"(Leave -n away, or set parallel.data to "auto".)");
  }
  return ranks;
}

// What an earlier run left is never overwritten unasked.
void check_out(const TrainCommand& command) {
  if (!command.resume && fs::exists(command.out / "checkpoints") && !fs::is_empty(command.out / "checkpoints")) {
    throw InputError("trireme", concat(command.out.string(), " already holds a run with checkpoints"),
                     "Continue it with --resume, name another folder with --out, or remove it.");
  }
}

int train(TrainCommand command) {
  const config::RunConfig run = config::read_run_file(command.run_file, command.overrides);
  const int64_t ranks = ranks_of(command, run);
  run.engine.batch_for(ranks / (run.parallel.pipe * run.parallel.tensor)); // complain before anything starts
  if (command.out.empty()) {
    command.out = default_out(command);
  }
  check_out(command);
  std::error_code error;
  fs::create_directories(command.out / "logs", error);
  if (error) {
    throw InputError("trireme", concat("cannot make the run folder ", command.out.string(), ": ", error.message()));
  }
  launch::LaunchOptions options;
  options.ranks = static_cast<int>(ranks);
  options.max_restarts = static_cast<int>(command.max_restarts);
  options.log_dir = command.out / "logs";
  options.extra_env = {{"TRIREME_RUN_DIR", fs::absolute(command.out).string()}};
  options.all_output = command.all_output;
  options.command = {rank_program().string(), "train", command.run_file.string(), "--out", command.out.string()};
  for (const std::string& override : command.overrides) {
    options.command.insert(options.command.end(), {"--set", override});
  }
  if (command.trace_steps > 0) {
    options.command.insert(options.command.end(), {"--trace", std::to_string(command.trace_steps)});
  }
  if (command.resume) {
    options.command.insert(options.command.end(), {"--resume", command.resume_from});
  }
  return launch::run(options);
}

int launch_program(const LaunchCommand& command) {
  launch::LaunchOptions options;
  options.ranks = static_cast<int>(command.ranks);
  options.command = command.program;
  options.max_restarts = static_cast<int>(command.max_restarts);
  options.log_dir = command.log_dir;
  options.all_output = command.all_output;
  return launch::run(options);
}

// A job of its own for every number of ranks and every backend; the ranks print the rows.
int bench_comm(const BenchCommCommand& command) {
  if (!command.json) {
    std::cout << "backend       ranks          bytes         us     us_min      GB/s" << std::endl;
  }
  const auto list = [](const std::vector<int64_t>& numbers) {
    std::string text;
    for (const int64_t number : numbers) {
      text += (text.empty() ? "" : ",") + std::to_string(number);
    }
    return text;
  };
  for (const int64_t ranks : command.ranks) {
    for (const std::string& backend : command.backends) {
      launch::LaunchOptions options;
      options.ranks = static_cast<int>(ranks);
      options.command = {rank_program().string(), "bench", "comm", "--op", command.op, "--ranks", std::to_string(ranks),
                         "--bytes", list(command.bytes), "--repeats", std::to_string(command.repeats), "--backends", backend};
      if (command.json) {
        options.command.push_back("--json");
      }
      options.extra_env = {{"TRIREME_BACKEND", backend}};
      if (const int status = launch::run(options); status != 0) {
        return status;
      }
    }
  }
  return 0;
}

int run(int argc, char** argv) {
  const Command command = parse(argc, argv);
  if (const auto* bench_command = std::get_if<BenchCommCommand>(&command)) {
    return bench_comm(*bench_command);
  }
  if (const auto* train_command = std::get_if<TrainCommand>(&command)) {
    return train(*train_command);
  }
  if (const auto* launch_command = std::get_if<LaunchCommand>(&command)) {
    return launch_program(*launch_command);
  }
  if (const auto* fetch_command = std::get_if<DataFetchCommand>(&command)) {
    return fetch_data(*fetch_command);
  }
  if (const auto* schedule_command = std::get_if<ScheduleCommand>(&command)) {
    return show_schedule(*schedule_command);
  }
  hand_over(argv);
}

} // namespace
} // namespace trireme::tools

int main(int argc, char** argv) {
  try {
    return trireme::tools::run(argc, argv);
  } catch (const trireme::tools::ExitNow& done) {
    return done.code;
  } catch (const trireme::Error& error) {
    trireme::log::error(error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    trireme::log::error(error.what());
    return 1;
  }
}
