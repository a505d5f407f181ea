#pragma once

#include <trireme/comm/compressed/compressed_all_reduce.h>
#include <trireme/compress/warm_up.h>
#include <trireme/optim/flat_optimizer.h>
#include <trireme/parallel/data/gradient_sync.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::compress {

/// 1-bit Adam. Until the end of the warm-up (WarmUp) another sync does everything, and it is Adam to the bit. After it the second moment stays as it is:
/// each rank moves the first moment by its own gradient, m + (1 - beta1)(g - m), the ranks agree on the mean of these by
/// comm::CompressedAllReduce with signs, and all step with it. What compression leaves out goes into the next step's.
///
/// Signs give all elements of a stretch one magnitude, and Adam divides by the root of the second moment: an element with far smaller gradients than its
/// neighbours, as a bias of keys or a rare token, would step as much too far. So what travels is divided by the power of two at or below that root, and
/// multiplied by it on arrival: both are exact, and these factors never change. (In the paper and in DeepSpeed the moment travels as it is;
/// biases of keys of a small GPT then came to 900 in 40 steps.)
///
/// ZeRO stage 1: the same, to the bit. Each rank has all of the first moment besides, because it is what moves and travels; second moments and masters stay shared, and stepped parameters travel as ZeRO sends them.
///
/// Parameters of a kind lie in buckets, as always; a scale belongs to at most 2048 elements of one parameter. Elements that had no gradient in the
/// whole warm-up (second moment 0) keep their values afterwards. Clipping and the look for NaN see the ranks' own gradients
/// (GradientSync::gradients_stay): all are scaled by one factor before they enter the moment, so that neither enters the errors.
/// Memory, besides Adam's, for n parameters and N ranks, from the end of the warm-up on: n (1 + 1/N) errors of 4 bytes, n / 4 bytes of messages and
/// n of exponents; with ZeRO n first moments of 4 bytes.
/// Cost then: 2 (n / 8 + 4 n / 2048)(N - 1)/N bytes sent by each rank in a step, while the buckets before are stepped; not while backward runs.
/// Source: Tang et al. 2021, arXiv:2102.02888; DeepSpeed's OnebitAdam, whose names and defaults the options have.
class OneBitAdamSync final : public parallel::GradientSync {
 public:
  /// `plain`: the sync of the warm-up. `everyone`: all ranks that train the model, for what all of them decide.
  OneBitAdamSync(std::unique_ptr<parallel::AllReduceSync> plain, const optim::OneBitAdamOptions& options, comm::Group everyone);

  /// The optimizer that steps these buffers: once, before the first step. It must outlive this.
  void use(optim::FlatOptimizer& optimizer) {
    optimizer_ = &optimizer;
  }
  /// The last step of the warm-up; absent: it is not over.
  const std::optional<int64_t>& frozen_at() const {
    return frozen_at_;
  }

  bool gradients_stay() const override {
    return frozen_at_.has_value();
  }
  double scale() const override {
    return plain_->scale();
  }
  void attach(const std::vector<bucket::FlatParameters*>& buffers) override;
  void backward_begins(bool last) override {
    plain_->backward_begins(last);
  }
  comm::Work gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) override;
  void gradients_alone(bucket::FlatParameters& buffer, int64_t bucket) override {
    plain_->gradients_alone(buffer, bucket);
  }
  void backward_ended() override {
    plain_->backward_ended();
  }
  void step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) override;
  bool end_step(bool taken) override;
  void finish() override {
    plain_->finish();
  }
  double exposed_seconds() const override {
    return plain_->exposed_seconds();
  }

  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state, int64_t steps) override;
  bool has_tensors(const nlohmann::json& state) const override;
  /// "worker_error_R" of rank R of the parameter's group, and "server_error".
  void for_each_state(const Visit& visit) override;

 private:
  struct Exchange {
    bucket::FlatParameters* flat = nullptr;
    int64_t buffer = 0; // its number
    int64_t bucket = 0;
    comm::Stretch owned; // elements of the bucket whose moments the optimizer has here
    at::Tensor first; // the first moments of the bucket, where the optimizer does not have all of them
    std::shared_ptr<comm::CompressedAllReduce> reduce; // of the whole bucket
    comm::ErrorFeedback errors;
    at::Tensor exponents; // uint8, of the power of two of each element as fp32 has them; 0: dead, because the second moment is 0
    bool some_dead = false;
    std::shared_ptr<comm::CompressedAllReduce> round; // of the present step
    at::Tensor moment; // of the present step
  };

  const comm::Group& group_of(const Exchange& exchange) const {
    return groups().of(*exchange.flat);
  }
  bool is_sharded(const Exchange& exchange) const {
    return optimizer_->sharded() && group_of(exchange).size() > 1;
  }
  void for_each_slot(const Exchange& exchange, const std::function<void(const bucket::Slot& slot, const comm::Stretch& in_bucket)>& f) const;
  void freeze(int64_t at);
  void make_exchanges();
  void make_errors(Exchange& exchange);
  /// The parts of all ranks that share a bucket.
  at::Tensor gathered(const Exchange& exchange, const at::Tensor& own) const;
  double norm_of_second_moments() const;
  std::shared_ptr<comm::CompressedAllReduce> make_round(const Exchange& exchange) const;
  bool leaves_some_out(const Exchange& exchange) const;
  void start(Exchange& exchange);
  void finish(Exchange& exchange);
  void report() const;

  std::unique_ptr<parallel::AllReduceSync> plain_;
  optim::OneBitAdamOptions options_;
  comm::Group everyone_;
  WarmUp warm_up_;
  optim::FlatOptimizer* optimizer_ = nullptr;
  std::optional<int64_t> frozen_at_;
  std::vector<Exchange> exchanges_; // of all buckets, in the order in which they are stepped
  bool made_ = false; // what exchanges_ needs after the warm-up
  size_t started_ = 0; // in the present step
  int64_t sent_ = 0; // bytes, in the present step
  bool reported_ = false;
};

} // namespace trireme::compress
