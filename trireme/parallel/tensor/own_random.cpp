#include <trireme/parallel/tensor/own_random.h>

#include <trireme/base/hash.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

namespace trireme::tensor {

OwnRandom::OwnRandom(int rank, int ranks, at::Device device) {
  if (ranks == 1) {
    return;
  }
  uint64_t drawn = 0;
  {
    at::Generator host = at::globalContext().defaultGenerator(at::kCPU);
    const std::lock_guard<std::mutex> lock(host.mutex());
    drawn = at::check_generator<at::CPUGeneratorImpl>(host)->random64();
  }
  generator_ = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator_.mutex());
  before_ = generator_.get_state();
  // A CPU's generator keeps 32 bits of a seed, so both are mixed first.
  generator_.set_current_seed(static_cast<uint32_t>(mix64(drawn + kMixStep * static_cast<uint64_t>(rank + 1))));
}

OwnRandom::~OwnRandom() {
  if (before_.defined()) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(before_);
  }
}

} // namespace trireme::tensor
