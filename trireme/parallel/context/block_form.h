#pragma once

#include <ATen/SDPBackend.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace trireme::context {

/// How a block of attention is computed (block.h). Every form returns log sum exp, so that blocks can be merged, and
/// the backward of one form takes the results of another.
enum class BlockForm {
  ours,      ///< fused/'s kernel, on the CPU
  flash_cpu, ///< ATen's flash kernel of the CPU
  flash,     ///< ATen's flash kernel of CUDA
  cudnn,     ///< cuDNN's kernel
  plain,     ///< matrix products
};

/// What a block's form depends on.
struct BlockTraits {
  c10::DeviceType device = c10::kCPU;
  at::ScalarType type = at::kFloat;
  int64_t head_size = 0;
  /// Heads of queries per head of keys.
  int64_t groups = 1;
  bool key_padding = false;
  bool window = false;
  bool dropout = false;
  /// fused::usable() of the block, without its padding.
  bool ours = false;
  /// at::globalContext().userEnabledFlashSDP().
  bool flash_enabled = true;
  /// at::_fused_sdp_choice() for q, k and v. From libtorch 2.11 it is cuDNN on Hopper and Blackwell.
  at::SDPBackend choice = at::SDPBackend::math;
};

/// The fastest form that supports the block. Reads `choice` on CUDA only.
BlockForm block_form(const BlockTraits& block);

/// True if the form reads each group's keys, false if it needs as many heads of keys as of queries.
bool reads_groups(BlockForm form);

/// Whether one process attends to all its tokens by ATen's attention, which has more kernels (fp32 and masks on CUDA)
/// but none of ours, and on the CPU repeats the keys of groups. Otherwise it is a block.
bool attends_by_aten(const BlockTraits& block);

} // namespace trireme::context
