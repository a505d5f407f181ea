#pragma once

#include <trireme/parallel/context/block.h>
#include <trireme/parallel/context/block_form.h>

#include <ATen/SDPBackend.h>

namespace trireme::context {

/// forward() and backward() of block.h by a kernel of ATen: `form` is flash_cpu, flash or cudnn. Last strides are 1.
/// `out` and `lse` are those of the full attention.
BlockResult aten_forward(BlockForm form, const Block& block);
BlockGradients aten_backward(BlockForm form, const Block& block, const at::Tensor& dout, const at::Tensor& out,
                             const at::Tensor& lse);

/// The kernel that ATen's attention would use for a block on CUDA, with a backward that it supports as well.
at::SDPBackend aten_choice(const Block& block);

} // namespace trireme::context
