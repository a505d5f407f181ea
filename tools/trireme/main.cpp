// `trireme`: the program that users run. Without libtorch it starts in milliseconds; it starts `trireme-rank` for
// commands that need libtorch.
#include <trireme/train/launch_options.h>
#include <trireme/train/show_estimate.h>
#include <trireme/train/show_plan.h>
#include <trireme/train/train_job.h>
#include "bench_tokenizer.h"
#include "commands.h"
#include "fetch_data.h"
#include "inspect_tokens.h"
#include "run_store.h"
#include "show_schedule.h"
#include "start_bench.h"
#include "tokenize.h"
#include "tokenize_data.h"

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/data/token_files/token_files.h>
#include <trireme/launch/agent.h>
#include <trireme/launch/environment.h>
#include <trireme/launch/launcher.h>

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string_view>

namespace trireme::tools {
namespace {

// Replaces this process by trireme-rank, with the same arguments.
[[noreturn]] void hand_over(char** argv) {
  const std::string program = train::rank_program().string();
  argv[0] = const_cast<char*>(program.c_str());
  if (!env::text("OMP_WAIT_POLICY")) {
    ::setenv("GOMP_SPINCOUNT", launch::kSpinCount, /*overwrite=*/0);
  }
  ::execv(program.c_str(), argv);
  throw Error("trireme", concat("cannot start ", program, ": ", std::strerror(errno)));
}

int launch_program(const LaunchCommand& command) {
  launch::LaunchOptions options = train::launch_options(command.places);
  options.ranks = static_cast<int>(command.ranks);
  options.servers = static_cast<int>(command.servers);
  if (options.servers > 0 && !command.places.max_restarts) {
    options.max_restarts = train::kRestartsOfAServer * options.servers;
  }
  options.command = command.program;
  options.log_dir = command.log_dir;
  options.all_output = command.all_output;
  return launch::run(options);
}

int run(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "agent") { // internal: a launcher on another host starts it
    return launch::run_agent();
  }
  const Command command = parse(argc, argv);
  if (const auto* bench_command = std::get_if<BenchCommCommand>(&command)) {
    return start_bench_comm(*bench_command, train::rank_program());
  }
  if (const auto* train_command = std::get_if<TrainCommand>(&command)) {
    train::set_failed_status(*train_command);
    return train::train_job(*train_command, {});
  }
  if (const auto* estimate_command = std::get_if<EstimateCommand>(&command)) {
    return train::show_estimate(*estimate_command, {});
  }
  if (const auto* plan_command = std::get_if<PlanCommand>(&command)) {
    return train::show_plan(*plan_command, {});
  }
  if (const auto* launch_command = std::get_if<LaunchCommand>(&command)) {
    return launch_program(*launch_command);
  }
  if (const auto* fetch_command = std::get_if<DataFetchCommand>(&command)) {
    return fetch_data(*fetch_command);
  }
  if (const auto* tokens_command = std::get_if<DataTokenizeCommand>(&command)) {
    return tokenize_data(*tokens_command);
  }
  if (const auto* inspect_command = std::get_if<InspectCommand>(&command);
      inspect_command != nullptr && data::is_token_data(inspect_command->path)) {
    return inspect_tokens(*inspect_command);
  }
  if (const auto* schedule_command = std::get_if<ScheduleCommand>(&command)) {
    return show_schedule(*schedule_command);
  }
  if (const auto* store_command = std::get_if<StoreCommand>(&command)) {
    return run_store(*store_command);
  }
  if (const auto* tokenizer_command = std::get_if<BenchTokenizerCommand>(&command)) {
    return bench_tokenizer(*tokenizer_command);
  }
  if (const auto* tokenize_command = std::get_if<TokenizeCommand>(&command)) {
    return tokenize(*tokenize_command);
  }
  hand_over(argv);
}

} // namespace
} // namespace trireme::tools

int main(int argc, char** argv) {
  try {
    return trireme::train::ended_with(trireme::train::with_output_written(trireme::tools::run(argc, argv)));
  } catch (const trireme::tools::ExitNow& done) {
    return trireme::train::with_output_written(done.code);
  } catch (const std::exception& error) {
    return trireme::train::ended_with(trireme::train::report_failure(error));
  }
}
