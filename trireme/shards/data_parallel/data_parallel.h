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
/// Construction broadcasts rank 0's parameters and buffers. After every backward()
/// the gradients of all parameters are the mean over the ranks, and buffers (BatchNorm's running_mean) are rank 0's
/// again, as DistributedDataParallel has them in the next forward; nothing else in the loop changes. A parameter that
/// no rank used gets a zero gradient, so an optimizer's weight decay still acts on it; one that all ranks have frozen
/// gets none. A parameter that is unfrozen later takes part from then on, after backward instead of during it. Each
/// rank feeds its own part of the data (data::DistributedSampler).
///
/// Ranks may run out of data at different times: a rank that has no more batches
/// calls join(), which takes part in the others' reductions with nothing to add (the
/// mean is then over the ranks that still train) until all have joined, and ends with
/// everybody holding the weights of a rank that trained longest.
///
/// A backward that throws ends the group: the other ranks get a PeerError that names this rank, and here the next
/// backward throws. So it is with what keeps a rank from beginning a backward that the others have begun: let the
/// exception end the program.
class DataParallel {
 public:
  /// Errors: InputError when no parameter requires a gradient, two share memory, or ranks built different models
  /// or have different options. One of the next 32 backwards throws one for a parameter that was added to the model
  /// later: make DataParallel anew.
  DataParallel(torch::nn::Module& model, comm::Group group, const DataParallelOptions& options = {});
  /// Of tensors by name, the same on every rank and in the same order: a TorchScript module's named_parameters(), a
  /// module's and learnable tensors beside it. Those that require no gradient are made equal and may be unfrozen.
  /// `buffers` are treated as a module's are. An optimizer steps no other tensors alike on all ranks. Errors:
  /// InputError as above, for a tensor that is undefined or no leaf, and for sync_batch_norm.
  DataParallel(std::vector<std::pair<std::string, at::Tensor>> parameters, comm::Group group,
               const DataParallelOptions& options = {}, std::vector<std::pair<std::string, at::Tensor>> buffers = {});
  ~DataParallel();
  DataParallel(DataParallel&&) noexcept;
  DataParallel& operator=(DataParallel&&) noexcept;

  /// While it lives, backward only accumulates: all micro-batches of a step but the last.
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
  NoSync no_sync() {
    return NoSync(*this);
  }

  /// Forgets all gradients without touching memory; faster than the optimizer's zero_grad().
  void zero_grad();

  /// The mean of a value over the ranks, for what has to go one way on all of them: the loss that a closure gives
  /// LBFGS, ReduceLROnPlateau or a program that stops early. The same shape and floating type, without a graph.
  /// Collective: each rank calls it as often, so not when some have called join(). Errors: InputError for another type.
  at::Tensor mean(const at::Tensor& value) const;

  /// Collective end of the data; see above. No backward() after it.
  void join();

  double exposed_seconds() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace trireme::parallel
