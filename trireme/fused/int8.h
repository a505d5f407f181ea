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

/// Scales of the groups of a weight [outputs, inputs] on the CPU: fp32 [outputs, groups], infinite where a weight is
/// not finite.
at::Tensor int8_scales(const at::Tensor& weight);
/// Packs a weight [outputs, inputs] of any floating type on the CPU. `scales`: those to use instead of its own, at
/// least as large, as int8_scales(). Errors: InputError for a weight that is not finite.
///
/// A rank's inputs of a split layer may begin inside a group. Put zeros before them, so that the groups are those of
/// the full weight: linear() adds the zeros to x. `scales` are then the largest of all ranks.
at::Tensor pack_int8(const at::Tensor& weight, const at::Tensor& scales = {});
/// The weight that a packed one stands for, [outputs, inputs].
at::Tensor unpack_int8(const at::Tensor& packed, at::ScalarType type);

/// at::embedding(weight, ids), fp32 if the weight is packed.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);

} // namespace trireme::fused
