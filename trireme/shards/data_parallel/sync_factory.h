#pragma once

#include <trireme/shards/data_parallel/gradient_sync.h>

#include <functional>
#include <memory>
#include <string>

namespace trireme::parallel {

/// How a program says which GradientSync its data ranks use: InitializeOptions::sync.
struct SyncFactory {
  /// "server" or "elastic": this process is one of several in worlds of their own, and the configuration asks for that
  /// kind (server::worker_sync(), replica_sync()). Empty: a GradientSync of the program's.
  std::string kind = {};
  std::function<std::unique_ptr<GradientSync>(const ReduceGroups& groups)> make;
  /// This process among those of other worlds: it takes its share of the samples.
  int worker = 0;
  int workers = 1;
};

} // namespace trireme::parallel
