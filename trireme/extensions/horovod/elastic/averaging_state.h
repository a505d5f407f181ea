#pragma once

#include <trireme/extensions/horovod/elastic/state.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme::horovod::elastic {

/// The state of replicas that step by themselves and average their parameters every few steps (local SGD, Stich 2018,
/// arXiv:1805.09767): a rank that is lost or comes changes the average, not the run.
///
///   for (; step < kSteps;) {
///     ... loss.backward(); adam.step();          // no DistributedOptimizer: nothing travels
///     if (++step % 50 == 0) { state.average(); }
///   }
///
/// Where a rank is lost, nobody goes back: the others average what they have when they meet again, which is the meeting
/// that failed, without the lost one. One that comes begins with the mean and rank 0's optimizer states. Objects
/// (steps, samplers) are rank 0's after each loss. A replica that had gone on from a meeting at which another one
/// failed keeps the steps that it made alone.
class AveragingState : public ObjectState {
 public:
  using ObjectState::add;
  /// Parameters and buffers that are floating point are averaged, in fp32 at least; others are rank 0's.
  void add(const std::string& name, torch::nn::Module& module);
  /// Each replica keeps its own states.
  void add(const std::string& name, torch::optim::Optimizer& optimizer);

  /// Makes every replica the mean of all, then does what check_host_updates() does. Collective; 2P(N-1)/N bytes sent
  /// for P bytes of fp32 values and N ranks.
  void average();

  void save() override {}
  /// Everybody keeps what it has.
  void restore() override {}
  void sync() override;

 private:
  /// `mine`: whether this rank's values count, of which `counted` do.
  void mean(bool mine, int64_t counted);

  std::vector<std::pair<std::string, torch::nn::Module*>> modules_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  bool trained_ = false; // has been alike with others before
};

} // namespace trireme::horovod::elastic
