#pragma once

#include <trireme/config/server_options.h>
#include <trireme/extensions/server/pieces.h>
#include <trireme/extensions/server/rpc/rpc.h>
#include <trireme/optim/options.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace trireme::parallel::server {

/// Counts what a server has done so far. Every push is counted once.
struct Counters {
  int64_t updates = 0;  ///< Optimizer steps, and steps that all workers agreed to skip.
  int64_t accepted = 0; ///< Gradients that became part of an update.
  int64_t dropped = 0;  ///< Gradients that came too late.
  int64_t lost = 0;     ///< Accepted gradients whose update was lost: every worker that knew the sum died.
  int64_t workers_lost = 0;
  int64_t largest_staleness = 0; ///< Largest number of updates between a gradient's values and its own update.
};

/// The optimizer of a configuration's "optimizer" section, as the first worker sends it; of "null": AdamW.
optim::OptimizerOptions optimizer_of_section(const std::string& json);

struct ParameterServerOptions {
  ServerOptions server;
  /// Index of this server, from 0.
  int place = 0;
  /// Folder of snapshots; empty: none are written. A server continues from its snapshot if there is one.
  std::filesystem::path folder;
  /// Throws ReplacedError if another training has taken over the run that `folder` belongs to. serve() then rethrows it
  /// and writes nothing more.
  std::function<void()> check_claim;
  /// Reads the optimizer section that the first worker sends.
  std::function<optim::OptimizerOptions(const std::string& json)> read_optimizer = optimizer_of_section;
  /// Accept new workers until the server is stopped, even after all workers have ended.
  bool until_stopped = false;
  /// Set by another thread or a signal handler: serve() ends within 50 ms.
  const std::atomic<bool>* stop = nullptr;
};

/// Holds one share of the parameters and steps it by the workers' gradients; docs/parameter_server.md has the protocol.
/// Returns when every worker has left or is lost (unless `until_stopped`), or when it is stopped. It then writes a
/// snapshot. Runs in one thread.
///
/// Cost of a step for a share of P bytes and W workers: W P bytes read, the optimizer's pass, and P bytes written for
/// each worker that requests the values. A snapshot that cannot be written is logged, and the job continues. Errors:
/// InputError for a snapshot that does not fit, and check_claim's. An invalid request is answered with an error and has
/// no other effect.
///
/// Source: Li et al. 2014, "Scaling distributed machine learning with the parameter server".
Counters serve(rpc::Server& server, const ParameterServerOptions& options);

} // namespace trireme::parallel::server
