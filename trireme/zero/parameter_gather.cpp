#include <trireme/zero/parameter_gather.h>

#include <trireme/zero/gather_bucket.h>

#include <chrono>

namespace trireme::zero {

void ParameterGather::start(int64_t buffer, int64_t bucket) {
  if (buffers_[buffer]->stays_whole(bucket)) {
    works_.push_back(gather_bucket(group_, *buffers_[buffer], bucket));
  }
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
