#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

// The commands that know a run file, as data, and how a program that has them ends.
namespace trireme::train {

/// Options for hosts and for failures: the same for train and launch.
struct PlacesCommand {
  std::filesystem::path hostfile;
  std::string rsh;
  int64_t min_nodes = 0;
  int64_t max_nodes = 0;
  double heartbeat_timeout = 5;
  std::optional<int64_t> max_restarts; ///< where it is not given: 0, and with servers 3 for each
  double grace = 0;
  std::vector<std::string> environment; ///< NAME=VALUE
};

struct TrainCommand {
  std::filesystem::path run_file;
  int64_t ranks = 0; ///< 0: what the run file's "parallel" asks for, at least 1; with a hostfile all slots that fit
  std::vector<std::string> overrides;
  bool resume = false;
  std::string resume_from = "auto";
  PlacesCommand places;
  std::filesystem::path out;
  bool all_output = false;
  int64_t trace_steps = 0;
  bool memory_check = true;
  int64_t stopped_status = 0; ///< exit status when a signal has stopped it and all is saved
  int64_t failed_status = 1;  ///< exit status of a failure that is not the input's
};

/// Where the tokens of texts are kept for all runs beside the run folder `out`: ".tokens".
std::filesystem::path token_cache_of(const std::filesystem::path& out);

struct EstimateCommand {
  std::filesystem::path run_file;
  int64_t ranks = 0; ///< as TrainCommand's
  std::vector<std::string> overrides;
  int64_t measured_steps = 0;
  bool probe = false;
  bool json = false;
};

struct PlanCommand {
  std::filesystem::path run_file;
  std::vector<std::string> overrides;
  std::filesystem::path cluster;
  bool calibrate = false;
  int64_t ranks = 2; ///< of this machine, to calibrate
  int64_t best = 10;
  bool json = false;
};

/// Returns `status`; but 1, with a message, if output could not be written (a full disk, say). Call it at the end of
/// main().
int with_output_written(int status);

/// Reports the error that ended the program. Returns its exit status.
int report_failure(const std::exception& error);

/// Sets what ended_with() replaces 1 by: TrainCommand::failed_status, once it is parsed.
void set_failed_status(const TrainCommand& command);
int ended_with(int status);

/// Thrown by parse() after it has printed everything.
struct ExitNow {
  int code;
};

} // namespace trireme::train
