#include <trireme/zero/sharded_sync.h>

#include <trireme/zero/gather_bucket.h>

#include <chrono>

namespace trireme::zero {

comm::Work ShardedSync::gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) {
  comm::Work reduced = reduce(buffer, bucket, parallel::ReduceTo::shards);
  if (!buffer.gradients_are_sharded()) {
    return reduced;
  }
  return comm::then(std::move(reduced), [&buffer, bucket] { buffer.accumulate(bucket); });
}

void ShardedSync::step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) {
  step();
  if (buffer.is_replicated(bucket)) {
    gathers_.push_back(gather_bucket(groups().of(buffer), buffer, bucket));
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
