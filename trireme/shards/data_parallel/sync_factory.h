#pragma once

#include <trireme/shards/data_parallel/gradient_sync.h>

#include <functional>
#include <memory>
#include <string>

namespace trireme::parallel {

/// Tells initialize() which GradientSync the data ranks use: InitializeOptions::sync.
struct SyncFactory {
  /// "server" or "elastic": this process trains with processes of other worlds, and the configuration asks for that
  /// kind (server::worker_sync(), replica_sync()). Empty: a GradientSync of the program's own.
  std::string kind = {};
  std::function<std::unique_ptr<GradientSync>(const ReduceGroups& groups)> make;
  /// Index of this process among those of all worlds, and their number: it gets that share of the samples.
  int worker = 0;
  int workers = 1;
};

} // namespace trireme::parallel
