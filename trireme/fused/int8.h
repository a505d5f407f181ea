#pragma once

#include <trireme/kernels/fused_kernels.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Weights of linear layers as int8, symmetric, with an fp32 scale for each group of 64 inputs of an output: a quarter
/// of fp32's bytes and 6 %. linear() takes them in place of floats.
///
/// A packed weight is an int8 tensor [outputs, bytes of a row], whose rows have their scales before their values (as
/// kernels::FewRowsArgs describes). Each weight is wrong by at most half a scale, 1/254 of the largest weight of its
/// group.
namespace trireme::fused {

/// Whether a tensor is a packed weight.
bool is_int8(const at::Tensor& weight);
/// Inputs of a packed weight.
int64_t columns_of_int8(const at::Tensor& packed);

/// Packs a weight [outputs, inputs] of any floating type on the CPU. Errors: InputError for a weight that is not
/// finite.
at::Tensor pack_int8(const at::Tensor& weight);
/// The weight that a packed one stands for, [outputs, inputs].
at::Tensor unpack_int8(const at::Tensor& packed, at::ScalarType type);

/// at::embedding(weight, ids), fp32 if the weight is packed.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);

} // namespace trireme::fused
