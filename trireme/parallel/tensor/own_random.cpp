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
  // Mixes number and rank first, because a CPU's generator keeps 32 bits of a seed.
  const auto seed = static_cast<uint32_t>(mix64(drawn + kMixStep * static_cast<uint64_t>(rank + 1)));
  std::vector<at::Device> devices = {at::kCPU};
  if (!device.is_cpu()) {
    devices.push_back(device);
  }
  for (const at::Device each : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(each);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generators_.push_back({generator, generator.get_state()});
    generator.set_current_seed(seed);
  }
}

OwnRandom::~OwnRandom() {
  for (Generator& each : generators_) {
    const std::lock_guard<std::mutex> lock(each.generator.mutex());
    each.generator.set_state(each.before);
  }
}

} // namespace trireme::tensor
