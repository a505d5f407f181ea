#include <trireme/fused/int8.h>

#include <trireme/fused/rows.h>

#include <ATen/ATen.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace trireme::fused {
namespace {

constexpr int64_t kGroup = kernels::kInt8Group;
constexpr int64_t kScaleBytes = sizeof(float);
constexpr float kLargestByte = std::numeric_limits<int8_t>::max();

int64_t groups_of(int64_t columns) {
  return (columns + kGroup - 1) / kGroup;
}

/// Scale of these weights, infinite if one of them is not finite.
float scale_of(const float* weights, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::abs(weights[i]);
    if (!std::isfinite(magnitude)) {
      return std::numeric_limits<float>::infinity();
    }
    largest = std::max(largest, magnitude);
  }
  return largest / kLargestByte;
}

void pack_row(const float* weights, int64_t columns, const float* scales, int8_t* packed, int64_t row) {
  int8_t* const values = packed + groups_of(columns) * kScaleBytes;
  for (int64_t begin = 0; begin < columns; begin += kGroup) {
    const int64_t end = std::min(begin + kGroup, columns);
    const float scale = scales[begin / kGroup];
    if (!std::isfinite(scale)) {
      throw InputError("int8 weights", concat("output ", row, " of a layer has a weight that is not finite"),
                       "Check the model's files, or leave out --weights int8.");
    }
    std::memcpy(packed + begin / kGroup * kScaleBytes, &scale, sizeof scale);
    for (int64_t i = begin; i < end; ++i) {
      const float units = scale > 0 ? weights[i] / scale : 0; // a scale may be denormal
      values[i] = static_cast<int8_t>(std::lround(std::min(std::max(units, -kLargestByte), kLargestByte)));
    }
  }
}

void unpack_row(const int8_t* packed, int64_t columns, float* weights) {
  const int8_t* const values = packed + groups_of(columns) * kScaleBytes;
  for (int64_t begin = 0; begin < columns; begin += kGroup) {
    float scale = 0;
    std::memcpy(&scale, packed + begin / kGroup * kScaleBytes, sizeof scale);
    const int64_t end = std::min(begin + kGroup, columns);
    for (int64_t i = begin; i < end; ++i) {
      weights[i] = scale * static_cast<float>(values[i]);
    }
  }
}

} // namespace

bool is_int8(const at::Tensor& weight) {
  return weight.scalar_type() == at::kChar;
}

int64_t columns_of_int8(const at::Tensor& packed) {
  const int64_t bytes = columns_of(packed), of_group = kGroup + kScaleBytes;
  return bytes - (bytes + of_group - 1) / of_group * kScaleBytes;
}

at::Tensor int8_scales(const at::Tensor& weight) {
  const at::Tensor floats = weight.detach().to(at::kFloat).contiguous();
  const int64_t columns = columns_of(floats), groups = groups_of(columns);
  const at::Tensor scales = at::empty({floats.size(0), groups}, at::kFloat);
  const float* const from = floats.const_data_ptr<float>();
  float* const to = scales.mutable_data_ptr<float>();
  parallel_rows(floats.size(0), columns, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * groups; i < end * groups; ++i) {
      const int64_t first = i % groups * kGroup;
      to[i] = scale_of(from + i / groups * columns + first, std::min(kGroup, columns - first));
    }
  });
  return scales;
}

at::Tensor pack_int8(const at::Tensor& weight, const at::Tensor& given_scales) {
  if (weight.dim() != 2 || !weight.is_floating_point() || !weight.is_cpu()) {
    throw InputError("int8 weights",
                     concat("a weight of sizes ", weight.sizes(), " and type ", weight.scalar_type(), " on ",
                            weight.device().str(), " cannot be packed"),
                     "Give floating-point numbers [outputs, inputs] on the CPU.");
  }
  const at::Tensor floats = weight.detach().to(at::kFloat).contiguous();
  const at::Tensor scales = given_scales.defined() ? given_scales.contiguous() : int8_scales(floats);
  const int64_t columns = columns_of(floats), groups = groups_of(columns), bytes = groups * kScaleBytes + columns;
  TORCH_INTERNAL_ASSERT(scales.sizes() == at::IntArrayRef({floats.size(0), groups}));
  const at::Tensor packed = at::empty({floats.size(0), bytes}, at::kChar);
  const float* const from = floats.const_data_ptr<float>();
  const float* const of_groups = scales.const_data_ptr<float>();
  int8_t* const to = packed.mutable_data_ptr<int8_t>();
  parallel_rows(floats.size(0), columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      pack_row(from + row * columns, columns, of_groups + row * groups, to + row * bytes, row);
    }
  });
  return packed;
}

at::Tensor unpack_int8(const at::Tensor& any_packed, at::ScalarType type) {
  const at::Tensor packed = any_packed.cpu().contiguous();
  const int64_t columns = columns_of_int8(packed), bytes = columns_of(packed);
  const at::Tensor floats = at::empty({packed.size(0), columns}, at::kFloat);
  const int8_t* const from = packed.const_data_ptr<int8_t>();
  float* const to = floats.mutable_data_ptr<float>();
  parallel_rows(packed.size(0), columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      unpack_row(from + row * bytes, columns, to + row * columns);
    }
  });
  return floats.to(any_packed.device(), type);
}

} // namespace trireme::fused
