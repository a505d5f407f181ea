#include <trireme/shards/zero/sharded_sync.h>

#include <trireme/base/text.h>
#include <trireme/shards/zero/gather_bucket.h>

#include <torch/utils.h>

#include <chrono>
#include <utility>

namespace trireme::zero {

comm::Work ShardedSync::gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) {
  send_between(); // of earlier buckets, reduced while this one filled
  comm::Work reduced = reduce(buffer, bucket, parallel::ReduceTo::shards);
  if (buffer.gradients_are_sharded()) {
    reduced = comm::then(std::move(reduced), [&buffer, bucket] { buffer.accumulate(bucket); });
  }
  if (!last_ || groups().replicas_of(buffer).size() == 1) {
    return reduced;
  }
  const auto shard = std::make_shared<Shard>(Shard{&buffer, bucket, std::move(reduced), {}});
  reducing_.push_back(shard);
  return comm::then(comm::Work(), [this, shard] {
    send_between();
    shard->between.wait();
  });
}

// Every rank calls this for the same buckets, so the sums begin in one order.
void ShardedSync::send_between() {
  for (const auto& shard : std::exchange(reducing_, {})) {
    shard->reduced.wait();
    shard->between =
        sum_between(groups().replicas_of(*shard->buffer), *shard->buffer, shard->bucket, travel(*shard->buffer));
  }
}

void ShardedSync::backward_ended() {
  send_between();
}

comm::Work ShardedSync::sum_between(const comm::Group& replicas, bucket::FlatParameters& buffer, int64_t bucket,
                                    at::ScalarType travel) {
  const torch::NoGradGuard no_grad;
  const at::Tensor shard = buffer.owned_grad(bucket, buffer.plan().mine(bucket));
  const std::string what = concat("gradients of the copies, bucket ", bucket);
  if (travel == shard.scalar_type()) {
    return replicas.all_reduce(shard, comm::ReduceOp::sum, what);
  }
  const at::Tensor sent = replicas.allocate(shard.numel(), travel, shard.device()).copy_(shard);
  return comm::then(replicas.all_reduce(sent, comm::ReduceOp::sum, what), [shard, sent] {
    const torch::NoGradGuard no_autograd;
    at::Tensor(shard).copy_(sent);
  });
}

void ShardedSync::step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) {
  step();
  if (buffer.is_replicated(bucket)) {
    gathers_.push_back(gather_bucket(groups().shards_of(buffer), buffer, bucket));
  }
}

bool ShardedSync::end_step(bool) {
  finish();
  return false;
}

void ShardedSync::finish() {
  const auto start = std::chrono::steady_clock::now();
  for (comm::Work& gather : gathers_) {
    gather.wait();
  }
  gathers_.clear();
  exposed_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace trireme::zero
