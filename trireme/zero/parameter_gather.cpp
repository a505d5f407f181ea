#include <trireme/zero/parameter_gather.h>

#include <trireme/bucket/shard_plan.h>

#include <chrono>

namespace trireme::zero {

void ParameterGather::start(int64_t buffer, int64_t bucket) {
  bucket::FlatParameters& parameters = *buffers_[buffer];
  if (!parameters.stays_whole(bucket)) {
    return;
  }
  const bucket::Bucket& whole = parameters.layout().buckets()[bucket];
  const bucket::Range mine = bucket::shard_of(whole, group_.rank(), group_.size());
  works_.push_back(group_.all_gather(parameters.bucket_data(bucket), parameters.owned_data(bucket, mine), "parameters"));
}

void ParameterGather::finish() {
  const auto start = std::chrono::steady_clock::now();
  for (comm::Work& work : works_) {
    work.wait();
  }
  works_.clear();
  exposed_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace trireme::zero
