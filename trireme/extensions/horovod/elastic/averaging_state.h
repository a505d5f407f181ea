#pragma once

#include <trireme/extensions/horovod/elastic/state.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme::horovod::elastic {

/// State of replicas that step separately and average their parameters every few steps (local SGD, Stich 2018,
/// arXiv:1805.09767). A rank that is lost or joins changes the average, not the run.
///
///   for (; step < kSteps;) {
///     ... loss.backward(); adam.step();          // no DistributedOptimizer: nothing is sent
///     if (++step % 50 == 0) { state.average(); }
///   }
///
/// If a rank is lost, no replica goes back: the others repeat the failed averaging step in the new round, without it. A
/// joining replica starts with the mean and rank 0's optimizer states. Objects (steps, samplers) are rank 0's after
/// each loss. A replica that had already left an averaging step which failed on another one keeps the steps made since.
class AveragingState : public ObjectState {
 public:
  using ObjectState::add;
  /// Floating-point parameters and buffers are averaged, in fp32 or wider; others are rank 0's.
  void add(const std::string& name, torch::nn::Module& module);
  /// Each replica keeps its own states.
  void add(const std::string& name, torch::optim::Optimizer& optimizer);

  /// Makes every replica the mean of all, then does the same as check_host_updates(). Collective. Sends 2P(N-1)/N bytes
  /// for P bytes of fp32 values and N ranks.
  void average();

  void save() override {}
  /// Does nothing: each replica keeps its values.
  void restore() override {}
  void sync() override;

 private:
  /// `mine`: whether this rank's values count; `counted`: the number of ranks whose values do.
  void mean(bool mine, int64_t counted);

  std::vector<std::pair<std::string, torch::nn::Module*>> modules_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  bool trained_ = false; // has been synchronised before
};

} // namespace trireme::horovod::elastic
