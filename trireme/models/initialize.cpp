#include <trireme/models/initialize.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <zlib.h>

namespace trireme::models {

namespace {

// The generator keeps 32 bits of a seed, so seed and name are mixed first (Steele et al. 2014, SplitMix64).
uint32_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return static_cast<uint32_t>(x ^ (x >> 31));
}

} // namespace

void fill(const at::Tensor& parameter, double value) {
  const torch::NoGradGuard no_grad;
  parameter.fill_(value);
}

void fill_normal(const at::Tensor& parameter, double std, int64_t seed, const std::string& name) {
  const torch::NoGradGuard no_grad;
  const uint32_t checksum = crc32(0, reinterpret_cast<const Bytef*>(name.data()), static_cast<uInt>(name.size()));
  const at::Generator generator = at::detail::createCPUGenerator(mix((static_cast<uint64_t>(seed) << 32) ^ checksum));
  parameter.normal_(0.0, std, generator);
}

} // namespace trireme::models
