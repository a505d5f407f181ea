#include <trireme/parallel/context/block_form.h>

namespace trireme::context {
namespace {

/// cuDNN's backward supports larger heads in some versions only; flash supports all up to 256.
constexpr int64_t kMostOfCudnn = 128;

BlockForm form_on_cpu(const BlockTraits& block, bool half) {
  if (!block.flash_enabled) {
    return BlockForm::plain;
  }
  if (block.ours && !block.key_padding) {
    return BlockForm::ours;
  }
  const bool supported = half || block.type == at::kFloat || block.type == at::kDouble;
  return supported && !block.window ? BlockForm::flash_cpu : BlockForm::plain;
}

BlockForm form_on_cuda(const BlockTraits& block, bool half) {
  if (!half || block.key_padding || block.window || block.head_size % 8 != 0) {
    return BlockForm::plain;
  }
  if (block.choice == at::SDPBackend::flash_attention) {
    return BlockForm::flash;
  }
  if (block.choice != at::SDPBackend::cudnn_attention) {
    return BlockForm::plain;
  }
  if (block.head_size <= kMostOfCudnn) {
    return BlockForm::cudnn;
  }
  return block.flash_enabled ? BlockForm::flash : BlockForm::plain;
}

} // namespace

BlockForm block_form(const BlockTraits& block) {
  const bool half = block.type == at::kHalf || block.type == at::kBFloat16;
  if (block.dropout || block.head_size == 0) {
    return BlockForm::plain;
  }
  switch (block.device) {
    case c10::kCPU:
      return form_on_cpu(block, half);
    case c10::kCUDA:
      return form_on_cuda(block, half);
    default:
      return BlockForm::plain;
  }
}

bool reads_groups(BlockForm form) {
  return form == BlockForm::ours || form == BlockForm::flash || form == BlockForm::cudnn;
}

bool attends_by_aten(const BlockTraits& block) {
  if (block.dropout || block.window || (block.ours && !block.key_padding)) {
    return false;
  }
  const bool reads_groups = block.device == c10::kCUDA;
  return (reads_groups || (block.device == c10::kCPU && block.groups == 1)) && block.choice != at::SDPBackend::math;
}

} // namespace trireme::context
