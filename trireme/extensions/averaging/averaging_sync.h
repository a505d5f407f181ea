#pragma once

#include <trireme/config/averaging_options.h>
#include <trireme/extensions/averaging/outer_optimizer.h>
#include <trireme/shards/data_parallel/gradient_sync.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::parallel {

/// Replicas take local steps and are averaged every H steps: parameter averaging, or local SGD.
///
/// Local steps send nothing. An averaging step averages the exact values (fp32 masters if parameters have lower
/// precision). An outer optimizer may step by the change over the round. Optimizer states are kept, averaged or reset.
/// A replica that skipped steps counts like the others. Before AveragingOptions::start_step it is an AllReduceSync.
///
/// Cost of an averaging step for P bytes of fp32 parameters and N ranks: each rank sends 2P(N-1)/N, and the same for
/// each averaged state. It does not overlap with backward. Source: Stich 2018, arXiv:1805.09767; outer_optimizer.h
/// names those of the outer optimizers.
class AveragingSync : public GradientSync, public StepExchange, public SyncState, public LocalSteps {
 public:
  /// `travel`: the type in which gradients are sent, as AllReduceSync's.
  AveragingSync(ReduceGroups groups, const AveragingOptions& options,
                std::optional<at::ScalarType> travel = std::nullopt);

  StepExchange& step_exchange() override { return *this; }
  SyncState& sync_state() override { return *this; }
  const LocalSteps* local_steps() const override { return this; }

  bool is_local() const override { return is_local_after(steps_); }
  bool is_local_after(int64_t steps) const override { return steps >= options_.start_step; }
  bool ends_round() const override { return !is_local() || (steps_ + 1) % options_.every == 0; }
  int64_t steps_until_equal() const override {
    const bool nothing_to_agree_on = group().size() == 1 && !has_outer();
    return equal_ || nothing_to_agree_on ? 0 : options_.every - steps_ % options_.every;
  }
  Own own_values() const override {
    return options_.states == AveragingOptions::States::maintain ? Own::states : Own::nothing;
  }

  void attach(const std::vector<bucket::FlatParameters*>& buffers) override;
  comm::Work gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) override {
    return is_local() ? comm::Work() : summing_.gradients_ready(buffer, bucket);
  }
  double scale() const override { return is_local() ? 1 : summing_.scale(); }

  void attach_optimizer(bucket::SteppedValues& values) override { values_ = &values; }
  void step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) override;
  bool end_step(bool taken) override;
  double exposed_seconds() const override { return exposed_; }

  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state, int64_t steps) override;
  void for_each_state(const nlohmann::json& state, const Visit& visit) override;

 protected:
  bool has_outer() const { return options_.outer != AveragingOptions::Outer::none; }
  void keep_start(int64_t buffer, int64_t bucket);
  /// Averages; called when the last step of the round has been taken or skipped.
  virtual void finish_round();
  /// Begins a round.
  void begin_round();
  /// Returns SlowMo's learning rate: the mean over the steps that these ranks took in the round. With `counts` false
  /// this rank's steps do not count. Collective.
  double lr_of_round(const comm::Group& ranks, bool counts = true) const;

 private:
  bool is_own(const nlohmann::json& state) const;
  void average(int64_t buffer, int64_t bucket, const at::Tensor& parameters, double lr);
  void treat_states(const bucket::SteppedValues::Values& values);

 protected:
  AveragingOptions options_;
  OuterOptimizer outer_;
  std::vector<bucket::FlatParameters*> buffers_;
  bucket::SteppedValues* values_ = nullptr;
  int64_t steps_ = 0;
  bool equal_ = true; // the replicas' parameters are equal
  double exposed_ = 0;

 private:
  AllReduceSync summing_; // used before start_step
  double lr_sum_ = 0;     // over the steps that were taken in this round
  int64_t taken_ = 0;
};

} // namespace trireme::parallel
