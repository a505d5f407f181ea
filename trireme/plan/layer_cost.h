#pragma once

#include <trireme/plan/cluster.h>
#include <trireme/plan/layout.h>

#include <cstdint>
#include <vector>

namespace trireme::plan {

/// Seconds of a rank for one layer and one micro-batch, including collectives of the tensor and context axes.
struct LayerCost {
  double forward = 0;
  double backward_input = 0;
  double backward_weight = 0;
  /// In addition to backward_weight if it is computed apart from backward_input: with sequence parallelism a layer's
  /// input is gathered again.
  double weights_later = 0;
  /// In addition to backward_weight: new gradients are copied into the flat buffer by the first micro-batch, and added
  /// by the others.
  double gradients = 0;
  /// Arithmetic operations of matrix products and attention in forward and backward, without recomputation.
  double flops = 0;

  double backward() const { return backward_input + backward_weight; }
};

/// Costs of the layers of the model in order, the head's with the loss. Includes recomputation in backward, but not
/// the gathers of shared inputs for it.
///
/// Matrix products: operations divided by the speed at their size.
///
/// Attention: 2 products forward and 5 backward, of the half below the diagonal. With dropout: of whole matrices, 2 and
/// 4, plus 6.5 and 9.5 passes over [B, A, L, L]. With context ranks: of what their queries see, 2 and 5, plus 6.5 and
/// 16 passes in fp32.
///
/// Passes over [B, L, H] between them: for a GPT 21 forward and 42 backward, of which the tensor axis does not split 9
/// and 18; for a Llama as its widths say, and 2 over queries and keys, which it rotates.
/// Context ranks make 13 and 24 more. Each of a block's 4 and 6 collectives of shared tokens makes 2.5 over all tokens.
///
/// Frozen parameters (Job::trained): backward computes the gradients of a layer's weights in proportion to the
/// trained ones, and nothing before the first layer with one. The products of adapters are not counted.
std::vector<LayerCost> layer_costs(const Cluster& cluster, const Job& job, const Layout& layout);

} // namespace trireme::plan
