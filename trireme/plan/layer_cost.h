#pragma once

#include <trireme/plan/cluster.h>
#include <trireme/plan/layout.h>

#include <cstdint>
#include <vector>

namespace trireme::plan {

/// Seconds that a rank spends on one layer for one micro-batch, collectives of the tensor and the context axis
/// included.
struct LayerCost {
  double forward = 0;
  double backward_input = 0;
  double backward_weight = 0;
  /// Beside backward_weight, where it is computed apart from backward_input: with sequence parallelism a layer's input
  /// is gathered once more.
  double weights_later = 0;
  /// Beside backward_weight: fresh gradients are copied into their flat buffer by the first micro-batch and added to it
  /// by the others.
  double gradients = 0;
  /// Arithmetic operations of the matrix products and of attention in forward and backward, without recomputation.
  double flops = 0;

  double backward() const {
    return backward_input + backward_weight;
  }
};

/// Costs of the layers of models::Gpt in their order, recomputation in backward included, without the gathers of inputs
/// for it that tensor ranks keep shares of; the head's with the loss.
///
/// Matrix products: operations over the speed at their size. Attention: 2 products forward, 5 backward of the half
/// below the diagonal (with dropout whole matrices, 2 and 4, and 6.5 and 9.5 passes over [B, A, L, L]; with context
/// ranks what their queries see, 2 and 5, and 6.5 and 16 in fp32). Between them, passes over [B, L, H]: 21 forward, 42
/// backward, of which 9 and 18 lie outside what the tensor axis divides. Context ranks make 13 and 24 more; each of a
/// block's 4 and 6 collectives of shared tokens 2.5 over all tokens.
std::vector<LayerCost> layer_costs(const Cluster& cluster, const Job& job, const Layout& layout);

/// Operations of a step by Narayanan et al. 2021, arXiv:2104.04473: 96 B l L h^2 (1 + L / 6h + V / 16 l h) counts
/// recomputation; the "model" operations, three quarters of it but for the head, do not.
double published_flops(const models::GptOptions& gpt, int64_t batch);

} // namespace trireme::plan
