#include <trireme/models/initialize.h>

#include <trireme/base/hash.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <zlib.h>

namespace trireme::models {
namespace {

// Mixes seed and name first, because the generator keeps 32 bits of a seed.
at::Generator generator_of(int64_t seed, const std::string& name) {
  const uint32_t checksum = crc32(0, reinterpret_cast<const Bytef*>(name.data()), static_cast<uInt>(name.size()));
  return at::detail::createCPUGenerator(
      static_cast<uint32_t>(mix64(((static_cast<uint64_t>(seed) << 32) ^ checksum) + kMixStep)));
}

} // namespace

void fill(const at::Tensor& parameter, double value) {
  const torch::NoGradGuard no_grad;
  parameter.fill_(value);
}

void fill_normal(const at::Tensor& parameter, double std, int64_t seed, const std::string& name) {
  const torch::NoGradGuard no_grad;
  parameter.normal_(0.0, std, generator_of(seed, name));
}

void fill_uniform(const at::Tensor& parameter, double bound, int64_t seed, const std::string& name) {
  const torch::NoGradGuard no_grad;
  parameter.uniform_(-bound, bound, generator_of(seed, name));
}

} // namespace trireme::models
