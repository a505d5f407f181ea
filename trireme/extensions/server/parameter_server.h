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

/// What a server has done so far. Every push is one of them.
struct Counters {
  int64_t updates = 0;  ///< steps of the optimizer, or skipped ones that all workers agreed on
  int64_t accepted = 0; ///< gradients that became part of an update
  int64_t dropped = 0;  ///< gradients that came too late
  int64_t lost =
      0; ///< gradients that were taken and never became part of an update, because all who knew of them had died
  int64_t workers_lost = 0;
  int64_t largest_staleness = 0; ///< updates between the values that a gradient is of and its own update
};

/// The optimizer of a configuration's "optimizer" section, as the first worker sends it; of "null": AdamW.
optim::OptimizerOptions optimizer_of_section(const std::string& json);

struct ParameterServerOptions {
  ServerOptions server;
  /// This server's number, from 0.
  int place = 0;
  /// Where snapshots are; empty: there are none. A server whose snapshot is there goes on from it.
  std::filesystem::path folder;
  /// Throws ReplacedError where another training has taken over the run that `folder` is part of: serve() ends with it,
  /// and writes nothing more.
  std::function<void()> check_claim;
  /// Reads the optimizer that the first worker sends.
  std::function<optim::OptimizerOptions(const std::string& json)> read_optimizer = optimizer_of_section;
  /// Workers may come as long as nobody says stop, also when all that were there have ended.
  bool until_stopped = false;
  /// Set by another thread or a signal: ends the server at the next look.
  const std::atomic<bool>* stop = nullptr;
};

/// Holds one share of the parameters and steps it by the gradients that workers push; the protocol is in
/// docs/parameter_server.md. Returns when every worker that ever joined has left or is gone (but for `until_stopped`),
/// or when it is told to stop; a snapshot is written then. Cost of a step for a share of P bytes and W workers: W P
/// read, the optimizer's pass, and P written for each worker that asks for the values. One thread. Source: Li et al.
/// 2014, "Scaling distributed machine learning with the parameter server". Errors: InputError for a snapshot that does
/// not fit; check_claim's; Error for one that cannot be written. What a worker does wrong is answered to it alone.
Counters serve(rpc::Server& server, const ParameterServerOptions& options);

} // namespace trireme::parallel::server
