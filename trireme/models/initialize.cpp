#include <trireme/models/initialize.h>

#include <trireme/base/hash.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <zlib.h>

namespace trireme::models {

void fill(const at::Tensor& parameter, double value) {
  const torch::NoGradGuard no_grad;
  parameter.fill_(value);
}

void fill_normal(const at::Tensor& parameter, double std, int64_t seed, const std::string& name) {
  const torch::NoGradGuard no_grad;
  const uint32_t checksum = crc32(0, reinterpret_cast<const Bytef*>(name.data()), static_cast<uInt>(name.size()));
  // Mixes seed and name first, because the generator keeps 32 bits of a seed.
  const at::Generator generator = at::detail::createCPUGenerator(
      static_cast<uint32_t>(mix64(((static_cast<uint64_t>(seed) << 32) ^ checksum) + kMixStep)));
  parameter.normal_(0.0, std, generator);
}

} // namespace trireme::models
