#include <trireme/train/train_main.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/device/cpu_allocator.h>
#include <trireme/launch/agent.h>
#include <trireme/train/add_commands.h>
#include <trireme/train/commands.h>
#include <trireme/train/show_estimate.h>
#include <trireme/train/show_plan.h>
#include <trireme/train/train_job.h>
#include <trireme/train/train_run.h>

#include <c10/util/Exception.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAgent = "agent"; // a launcher on another host starts it
constexpr const char* kRank = "rank";   // the launcher starts it

using AnyCommand = std::variant<TrainCommand, EstimateCommand, PlanCommand>;

// The commands of a program with its own types.
AnyCommand parse(int argc, char** argv) {
  const std::string name = fs::path(argv[0]).filename();
  CLI::App app{concat(name, ": trains as \"trireme train\" does, with the models and data of this program"), name};
  app.set_version_flag("--version", TRIREME_VERSION);
  app.require_subcommand(1);
  app.footer(
      concat("Exit status: 0 done, 2 the input is wrong, 1 anything else; train also 128 + signal.\n"
             "Help for one command: ",
             name, " COMMAND --help"));
  TrainCommand train;
  EstimateCommand estimate;
  PlanCommand plan;
  std::optional<AnyCommand> result;
  add_train(app, train, [&] { result = train; });
  add_estimate(app, estimate, [&] { result = estimate; });
  add_plan(app, plan, [&] { result = plan; });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) { // --help, --version
      app.exit(error);
      throw ExitNow{0};
    }
    throw InputError("command line", error.what(), concat("Try: ", name, " --help"));
  }
  return *result;
}

struct Start {
  const Program& program;

  int operator()(const TrainCommand& command) const {
    set_failed_status(command);
    return train_job(command, program);
  }
  int operator()(const EstimateCommand& command) const { return show_estimate(command, program); }
  int operator()(const PlanCommand& command) const {
    if (command.calibrate) {
      throw InputError("plan", "this program cannot measure a machine", "Use trireme plan --calibrate.");
    }
    return show_plan(command, program);
  }
};

int run_rank(int argc, char** argv, const Registry& registry) {
  const AnyCommand command = parse(argc, argv);
  if (const auto* const train_command = std::get_if<TrainCommand>(&command)) {
    set_failed_status(*train_command);
    return train(*train_command, registry);
  }
  throw InputError("command line", concat('"', kRank, "\" is for the ranks that this program starts"),
                   "Leave the word out.");
}

} // namespace

int run_program(const std::function<int()>& program) {
  try {
    device::install_cpu_allocator();
    return ended_with(with_output_written(program()));
  } catch (const ExitNow& done) {
    return with_output_written(done.code);
  } catch (const PeerError& error) {
    log::error(error.what());
    // The rank that failed first must also end first, so that the launcher names it and not one that only lost it. The
    // launcher's SIGTERM ends this sleep.
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
    return ended_with(error.exit_code());
  } catch (const c10::Error& error) { // without what()'s C++ stack
    log::error(error.what_without_backtrace());
    return ended_with(1);
  } catch (const std::exception& error) {
    return ended_with(report_failure(error));
  }
}

int train_main(int argc, char** argv, const Registry& registry) {
  return run_program([&] {
    const std::string_view word = argc > 1 ? argv[1] : "";
    if (argc == 2 && word == kAgent) {
      return launch::run_agent();
    }
    if (word == kRank) {
      argv[1] = argv[0];
      return run_rank(argc - 1, argv + 1, registry);
    }
    const Program program{registry.types(), {fs::read_symlink("/proc/self/exe").string(), kRank}};
    return std::visit(Start{program}, parse(argc, argv));
  });
}

} // namespace trireme::train
