#include <trireme/train/add_commands.h>

#include <trireme/base/error.h>

#include <string>

namespace trireme::train {
namespace {

CLI::App* add(CLI::App& app, const char* name, const char* what, const char* example) {
  CLI::App* command = app.add_subcommand(name, what);
  command->footer(concat("Example:\n  ", app.get_name(), ' ', example));
  return command;
}

} // namespace

CLI::Validator at_least(int64_t least, double most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    double number = 0;
    if (!CLI::detail::lexical_cast(text, number) || !(number >= static_cast<double>(least))) {
      return concat("expected a number >= ", least, ", got \"", text, '"');
    }
    return number <= most ? "" : concat("\"", text, "\" is too large");
  };
  return CLI::Validator(check, concat(">= ", least));
}

CLI::Validator count_from(int64_t least) {
  return at_least(least, 1e6);
}

void add_places(CLI::App* c, PlacesCommand& places, double grace, const char* restarts) {
  places.grace = grace;
  c->add_option("--hostfile", places.hostfile, "Run on the hosts in this file (lines: HOST slots=N), reached over ssh")
      ->type_name("FILE");
  c->add_option("--rsh", places.rsh, "Command that starts a program on another host, instead of ssh (also TRIREME_RSH)")
      ->type_name("COMMAND");
  c->add_option("--min-nodes", places.min_nodes,
                "Fewest hosts to continue with when others are lost (default: --max-nodes)")
      ->check(count_from(1));
  c->add_option("--max-nodes", places.max_nodes, "Most hosts to use; the others in the file are spares (default: all)")
      ->check(count_from(1));
  c->add_option("--heartbeat-timeout", places.heartbeat_timeout, "Seconds after which a silent host is lost")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  c->add_option("-x,--env", places.environment,
                "Set a variable for the ranks on all hosts, as often as needed; other users see it in ps and /proc")
      ->type_name("NAME=VALUE")
      ->take_all()
      ->allow_extra_args(false);
  c->add_option("--max-restarts", places.max_restarts, restarts)->check(count_from(0));
  c->add_option("--grace", places.grace, "Seconds from asking ranks to end until they are killed")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
}

void add_train(CLI::App& app, TrainCommand& train, const std::function<void()>& parsed) {
  CLI::App* c = add(app, "train", "Train the model that a run file describes",
                    "train examples/austen/run.json -n 2 --set training.steps=100");
  c->add_option("run_file", train.run_file, "The run file (JSON)")->required()->type_name("RUN.json");
  c->add_option(
       "-n,--ranks", train.ranks,
       "Ranks to start (default: what \"parallel\" asks for; with a hostfile and \"data\": \"auto\" all that fit)")
      ->check(count_from(1))
      ->take_last();
  c->add_option("--set", train.overrides,
                "Change a value of the run file: path=value, as often as needed; other users see it in ps and /proc")
      ->type_name("PATH=VALUE")
      ->take_all()
      ->allow_extra_args(false);
  c->add_option(
       "--resume", train.resume_from,
       "Continue from the newest checkpoint of the run folder (auto), from a checkpoint or from another run folder")
      ->type_name("[auto|PATH]")
      ->expected(0, 1);
  add_places(c, train.places, 30,
             "Start again from the newest checkpoint this often when a rank dies or a host is lost");
  c->add_option("--out", train.out, "Run folder (default runs/<name of the run file>)")->type_name("DIR")->take_last();
  c->add_flag("--all-output", train.all_output, "Show the output of all ranks, not only of rank 0");
  c->add_option("--trace", train.trace_steps,
                "Record this many first steps of every rank in trace.json (opens in ui.perfetto.dev)")
      ->type_name("STEPS")
      ->check(at_least(0));
  c->add_option(
       "--stopped-status", train.stopped_status,
       "Exit status after a stop by a signal with a checkpoint (0), for schedulers that take 0 for done: 75, say")
      ->type_name("STATUS")
      ->check(CLI::Range(int64_t{0}, int64_t{255}));
  c->add_option(
       "--failed-status", train.failed_status,
       "Exit status of a failure other than of the input (1), for schedulers that retry by exit status: 200, say")
      ->type_name("STATUS")
      ->check(CLI::Range(int64_t{1}, int64_t{255}));
  c->add_flag("!--no-memory-check", train.memory_check, "Start even if the estimate does not fit in memory");
  c->callback([&train, parsed, c] {
    train.resume = c->count("--resume") > 0;
    if (train.resume_from.empty()) { // --resume without a value
      train.resume_from = "auto";
    }
    parsed();
  });
}

void add_estimate(CLI::App& app, EstimateCommand& estimate, const std::function<void()>& parsed) {
  CLI::App* c = add(app, "estimate", "Estimate the memory and traffic of a run, as formulas and numbers",
                    "estimate examples/austen/run.json -n 2 --measure 10");
  c->callback(parsed);
  c->add_option("run_file", estimate.run_file, "The run file (JSON)")->required()->type_name("RUN.json");
  c->add_option("-n,--ranks", estimate.ranks, "Ranks (default: what \"parallel\" asks for)")->check(count_from(1));
  c->add_option("--set", estimate.overrides, "Change a value of the run file: path=value, as often as needed")
      ->type_name("PATH=VALUE")
      ->take_all()
      ->allow_extra_args(false);
  c->add_option("--measure", estimate.measured_steps,
                "Also run this many steps (at least 2) in a scratch folder, and print their memory and traffic")
      ->type_name("STEPS")
      ->check(CLI::Range(int64_t{2}, int64_t{1'000'000}));
  c->add_flag("--probe", estimate.probe, "Also measure the disks of offloaded files");
  c->add_flag("--json", estimate.json, "One JSON object instead of tables");
}

void add_plan(CLI::App& app, PlanCommand& plan, const std::function<void()>& parsed) {
  CLI::App* c = add(app, "plan", "Find the fastest layouts of a run on a described cluster, without starting it",
                    "plan examples/plan/trillion.json --cluster examples/plan/cluster.json");
  c->callback(parsed);
  c->add_option("run_file", plan.run_file,
                "The run file (JSON) with the model and the batch; its \"parallel\" is checked, and otherwise not used")
      ->required()
      ->type_name("RUN.json");
  c->add_option("--cluster", plan.cluster,
                "Description of the cluster (JSON, docs/plan.md); with --calibrate it is written")
      ->required()
      ->type_name("FILE");
  c->add_option("--set", plan.overrides, "Change a value of the run file: path=value, as often as needed")
      ->type_name("PATH=VALUE")
      ->take_all()
      ->allow_extra_args(false);
  CLI::Option* const calibrate =
      c->add_flag("--calibrate", plan.calibrate,
                  "Measure this machine for the run's model, write the description, then plan with it");
  c->add_option("-n,--ranks", plan.ranks, "Ranks of this machine, with --calibrate")
      ->check(count_from(1))
      ->capture_default_str()
      ->needs(calibrate);
  c->add_option("--best", plan.best, "Layouts to show")->check(count_from(1))->capture_default_str();
  c->add_flag("--json", plan.json, "One JSON object a line for every layout that is shown or refused");
}

} // namespace trireme::train
