#pragma once

#include <trireme/kernels/attention_loops.h>
#include <trireme/kernels/cached_attention.h>
#include <trireme/kernels/few_rows.h>
#include <trireme/kernels/fused_kernel_sets.h>
#include <trireme/kernels/fused_rows.h>
#include <trireme/kernels/llama_rows.h>

namespace trireme::kernels {
namespace {

/// The loops of fused_kernels.h for the instruction set of the including fused_<simd>.cpp.
constexpr FusedKernelSet kFusedLoops = {&gelu,
                                        &gelu_backward,
                                        &layer_norm,
                                        &layer_norm_backward,
                                        &cross_entropy,
                                        &cross_entropy_backward,
                                        &column_sum,
                                        &add_bias,
                                        &rms_norm,
                                        &rms_norm_backward,
                                        &gated_silu,
                                        &gated_silu_backward,
                                        &rotary,
                                        &few_rows,
                                        &cached_attention,
                                        &cached_attention_join,
                                        &attention_workspace,
                                        &attention,
                                        &attention_backward};

} // namespace
} // namespace trireme::kernels
