// `trireme-rank`: the part of the command line with libtorch. `trireme` starts it as the ranks of a training, or
// becomes it for generate, inspect, bench and doctor.
#include "bench_attention.h"
#include "bench_comm.h"
#include "bench_device.h"
#include "bench_kernels.h"
#include "bench_optim.h"
#include "collective_check.h"
#include "commands.h"
#include "doctor.h"
#include "export_folder.h"
#include "generate_text.h"
#include "measure_machine.h"

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/checkpoint/describe.h>
#include <trireme/checkpoint/folder.h>
#include <trireme/comm/hang_report.h>
#include <trireme/train/train_main.h>
#include <trireme/train/train_run.h>

#include <nlohmann/json.hpp>

#include <iostream>
#include <string_view>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

/// True if the run continued after the hang and saved a checkpoint.
bool saved_since(const fs::path& hang_dump, const fs::path& run) {
  std::error_code error;
  const auto saved = fs::last_write_time(checkpoint::checkpoints_of(run) / checkpoint::kLatestName, error);
  return !error && saved > fs::last_write_time(hang_dump, error);
}

// In ASCII, because a file may hold control characters of a terminal.
template <class Json>
std::string as_line(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
}

int inspect(const InspectCommand& command) {
  const auto hang = comm::newest_hang_dump(command.path);
  if (hang && !saved_since(*hang, command.path)) {
    std::cout << (command.json ? as_line(comm::describe_hang_json(command.path))
                               : clean_utf8(comm::describe_hang(command.path), "?"));
    return 0;
  }
  const auto found = checkpoint::describe_json(command.path);
  if (command.json) {
    std::cout << as_line(found);
  } else {
    std::cout << checkpoint::text_of(found);
    if (hang) {
      std::cout << "\nThis run hung before it saved this checkpoint: trireme inspect " << printable(hang->string())
                << '\n';
    }
  }
  return checkpoint::has_damage(found) ? 1 : 0;
}

struct Run {
  int operator()(const TrainCommand& command) const {
    train::set_failed_status(command);
    return train::train(command, train::Registry());
  }
  int operator()(const GenerateCommand& command) const { return generate_text(command); }
  int operator()(const ExportCommand& command) const { return export_folder(command); }
  int operator()(const InspectCommand& command) const { return inspect(command); }
  int operator()(const DoctorCommand& command) const { return doctor(command); }
  int operator()(const BenchOptimCommand& command) const {
    BenchOptimArgs args;
    args.params = command.params;
    args.threads.assign(command.threads.begin(), command.threads.end());
    args.impls = command.impls;
    args.repeats = static_cast<int>(command.repeats);
    args.json = command.json;
    return bench_optim(args, std::cout);
  }
  int operator()(const BenchKernelsCommand& command) const {
    BenchKernelsArgs args;
    args.batch = command.batch;
    args.length = command.length;
    args.hidden = command.hidden;
    args.heads = command.heads;
    args.vocab = command.vocab;
    args.threads = static_cast<int>(command.threads);
    args.repeats = static_cast<int>(command.repeats);
    args.json = command.json;
    return bench_kernels(args, std::cout);
  }
  int operator()(const BenchAttentionCommand& command) const { return bench_attention(command, std::cout); }
  int operator()(const BenchDeviceCommand& command) const { return bench_device(command, std::cout); }
  int operator()(const BenchCommCommand& command) const { return bench_comm(command, std::cout); }
  int operator()(const LaunchCommand&) const { throw Error("trireme-rank", "launch is done by trireme"); }
  int operator()(const EstimateCommand&) const { throw Error("trireme-rank", "estimate is done by trireme"); }
  int operator()(const PlanCommand&) const { throw Error("trireme-rank", "plan is done by trireme"); }
  int operator()(const ScheduleCommand&) const { throw Error("trireme-rank", "schedule is done by trireme"); }
  int operator()(const StoreCommand&) const { throw Error("trireme-rank", "store is done by trireme"); }
  int operator()(const TokenizeCommand&) const { throw Error("trireme-rank", "tokenize is done by trireme"); }
  int operator()(const BenchTokenizerCommand&) const {
    throw Error("trireme-rank", "bench tokenizer is done by trireme");
  }
  int operator()(const DataFetchCommand&) const { throw Error("trireme-rank", "data fetch is done by trireme"); }
  int operator()(const DataTokenizeCommand&) const { throw Error("trireme-rank", "data tokenize is done by trireme"); }
};

int run(int argc, char** argv) {
  if ((argc == 3 || argc == 4) && std::string_view(argv[1]) == "check-collectives") { // internal: doctor starts it
    return check_collectives_as_rank(argv[2], argc == 4 ? argv[3] : "");
  }
  if (argc == 3 && std::string_view(argv[1]) == "measure-machine") { // internal: plan --calibrate starts it
    return measure_machine_as_rank(argv[2]);
  }
  return std::visit(Run(), parse(argc, argv));
}

} // namespace
} // namespace trireme::tools

int main(int argc, char** argv) {
  return trireme::train::run_program([&] { return trireme::tools::run(argc, argv); });
}
