#pragma once

#include <trireme/comm/group.h>
#include <trireme/shards/data_parallel/options.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::parallel {

/// Makes an ordinary libtorch training loop data parallel.
///
///   auto world = trireme::comm::World::connect();
///   trireme::parallel::DataParallel parallel(*model, world.group());
///   ... loss.backward(); optimizer.step(); ...      // as before
///
/// Construction broadcasts rank 0's parameters and buffers. After every backward() each gradient is the mean over the
/// ranks. Buffers (BatchNorm's running_mean) are rank 0's again, as in DistributedDataParallel's next forward. Nothing
/// else in the loop changes. Each rank reads its own share of the data (data::DistributedSampler).
///
/// A parameter that no rank used gets a zero gradient, so an optimizer's weight decay still acts on it. A parameter
/// that all ranks have frozen gets none. A parameter that is unfrozen later is exchanged from then on, after backward
/// instead of during it.
///
/// Ranks may run out of data at different times: a rank without more batches calls join(). It then takes part in the
/// others' reductions and adds nothing; the mean is over the ranks that still train. When all ranks have joined, all
/// get the weights of a rank that trained longest.
///
/// A backward that throws ends the group: the other ranks get a PeerError that names this rank, and the next backward
/// of this rank throws. The same holds if a rank cannot begin a backward that the others have begun: let the exception
/// end the program.
class DataParallel {
 public:
  /// Errors: InputError if no parameter requires a gradient, if two share memory, or if models or options differ
  /// between ranks. If a parameter is added to the model later, one of the next 32 backwards throws InputError: make
  /// DataParallel again.
  DataParallel(torch::nn::Module& model, comm::Group group, const DataParallelOptions& options = {});
  /// Takes tensors by name, the same on every rank and in the same order. Examples: a TorchScript module's
  /// named_parameters(); a module's parameters and learnable tensors outside it. Tensors that require no gradient are
  /// broadcast and may be unfrozen later. `buffers` are treated as a module's buffers. An optimizer must step no other
  /// tensors: they would differ between ranks. Errors: InputError as above, for a tensor that is undefined or no leaf,
  /// and for sync_batch_norm.
  DataParallel(std::vector<std::pair<std::string, at::Tensor>> parameters, comm::Group group,
               const DataParallelOptions& options = {}, std::vector<std::pair<std::string, at::Tensor>> buffers = {});
  ~DataParallel();
  DataParallel(DataParallel&&) noexcept;
  DataParallel& operator=(DataParallel&&) noexcept;

  /// While it lives, backward only accumulates: use it for all micro-batches of a step but the last.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(DataParallel& parallel);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DataParallel& parallel_;
    bool before_;
  };
  NoSync no_sync() { return NoSync(*this); }

  /// Resets all gradients without touching memory; faster than the optimizer's zero_grad().
  void zero_grad();

  /// Returns the mean of a value over the ranks. Use it for decisions that must be equal on all ranks: the loss of
  /// LBFGS's closure, ReduceLROnPlateau, early stopping. The result has the same shape and floating type, and no graph.
  /// Collective: no rank may have called join(). Errors: InputError for a type that is not floating.
  at::Tensor mean(const at::Tensor& value) const;

  /// Ends this rank's data; collective, see above. No backward() may follow.
  void join();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace trireme::parallel
