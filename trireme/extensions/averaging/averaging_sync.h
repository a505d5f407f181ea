#pragma once

#include <trireme/config/averaging_options.h>
#include <trireme/extensions/averaging/outer_optimizer.h>
#include <trireme/shards/data_parallel/gradient_sync.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::parallel {

/// Replicas step by themselves and become one model every H steps: parameter averaging, or local SGD.
///
/// Between two meetings nothing travels. At a meeting the exact values are averaged (fp32 masters, where parameters
/// have lower precision), an outer optimizer may step on what has come of the round, and optimizer states are kept,
/// averaged or reset. A replica that skipped steps of a round counts as the others. Cost at a meeting for P bytes of
/// fp32 parameters and N ranks: 2P(N-1)/N sent by each rank, so 2P(N-1)/N/H a step; states that are averaged cost the
/// same, each. It is not overlapped with backward. Up to AveragingOptions::start_step it is an AllReduceSync. Source:
/// Stich 2018, arXiv:1805.09767; outer_optimizer.h names those of the outer optimizers.
class AveragingSync : public GradientSync, public StepExchange, public SyncState, public LocalSteps {
 public:
  /// `travel`: AllReduceSync's.
  AveragingSync(ReduceGroups groups, const AveragingOptions& options,
                std::optional<at::ScalarType> travel = std::nullopt);

  StepExchange& step_exchange() override {
    return *this;
  }
  SyncState& sync_state() override {
    return *this;
  }
  const LocalSteps* local_steps() const override {
    return this;
  }

  bool is_local() const override {
    return is_local_after(steps_);
  }
  bool is_local_after(int64_t steps) const override {
    return steps >= options_.start_step;
  }
  bool ends_round() const override {
    return !is_local() || (steps_ + 1) % options_.every == 0;
  }
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
  double scale() const override {
    return is_local() ? 1 : summing_.scale();
  }

  void attach_optimizer(bucket::SteppedValues& values) override {
    values_ = &values;
  }
  void step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) override;
  bool end_step(bool taken) override;
  double exposed_seconds() const override {
    return exposed_;
  }

  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state, int64_t steps) override;
  void for_each_state(const nlohmann::json& state, const Visit& visit) override;

 protected:
  bool has_outer() const {
    return options_.outer != AveragingOptions::Outer::none;
  }
  void keep_start(int64_t buffer, int64_t bucket);
  /// The step of a meeting has been taken or skipped.
  virtual void meet();
  /// A round begins.
  void begin_round();
  /// SlowMo's, of the steps that these ranks have taken in the round; a rank does not count where `counts` is false.
  /// Collective.
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
  bool equal_ = true; // the replicas' parameters
  double exposed_ = 0;

 private:
  AllReduceSync summing_; // before start_step
  double lr_sum_ = 0;     // of the steps of this round that were taken
  int64_t taken_ = 0;
};

} // namespace trireme::parallel
