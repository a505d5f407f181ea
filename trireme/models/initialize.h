#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace trireme::models {

void fill(const at::Tensor& parameter, double value);

/// Normal(0, std) from a generator seeded by (seed, crc32(name)): the same values in any order, on any rank and in any
/// part of a model.
void fill_normal(const at::Tensor& parameter, double std, int64_t seed, const std::string& name);

/// Uniform in [-bound, bound), seeded in the same way.
void fill_uniform(const at::Tensor& parameter, double bound, int64_t seed, const std::string& name);

} // namespace trireme::models
