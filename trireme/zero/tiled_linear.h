#pragma once

#include <trireme/bucket/flat_layout.h>
#include <trireme/zero/sharded.h>

#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace trireme::zero {

struct TiledLinearOptions {
  int64_t in_features = 0;
  int64_t out_features = 0;
  bool bias = true;
  /// Tiles along each side of the weight, at most its length; they differ by at most one in size.
  int64_t in_splits = 1;
  int64_t out_splits = 1;
};

/// The fewest tiles of which two, the one in use and the one that is gathered ahead, need no more than `memory_bytes`
/// with elements of `element_bytes`. Cuts outputs first: then every result stays one sum. Errors: InputError if two
/// elements do not fit.
TiledLinearOptions tiles_within(int64_t memory_bytes, int64_t in_features, int64_t out_features, bool bias = true,
                                int64_t element_bytes = 4);

/// A torch::nn::Linear that is more than fits into memory at ZeRO stage 3: y = x W^T + b with W in out_splits x
/// in_splits tiles. Each is a unit of its own, gathered and let go of one after the other in forward, backward and
/// recomputation, also within a module or a layer that is a unit itself; of that one everything else stays meanwhile.
/// So one tile is whole at a time, and the next.
///
/// With in_splits = 1 every output is one sum, as in a Linear (whose bits it has where the BLAS adds up in the same
/// order for any number of outputs; MKL does not always); else in_splits sums are added up. Gradients likewise. The
/// initial values have a Linear's distribution. Parameters are "tile_<o>_<i>.weight" and, with i = 0, ".bias";
/// checkpoints have one "weight" and one "bias", so they fit a Linear, and other tiles, and the other way round. LAMB,
/// which needs a parameter's norm, is refused. Under zero::Init each tile is sharded before the next one is built;
/// without it, and in a list of layers, all are there at first. Shapes: x [..., in_features] -> [..., out_features].
/// Cost: a Linear's; with in_splits > 1 an addition more for each further one; one copy of the outputs with out_splits
/// > 1. Source: Rajbhandari et al. 2021, arXiv:2104.07857 (ZeRO-Infinity), section 5.1.3: memory-centric tiling.
class TiledLinearImpl : public torch::nn::Module {
 public:
  /// Errors: InputError for sizes that are not positive or more splits than features.
  explicit TiledLinearImpl(const TiledLinearOptions& options);
  /// With the values of a Linear; its size and whether it has a bias count, not those of `options`.
  TiledLinearImpl(const torch::nn::LinearImpl& linear, TiledLinearOptions options);

  at::Tensor forward(const at::Tensor& x);

  /// Copies in one piece: [out_features, in_features], and [out_features] or undefined. The parameters must be there
  /// (Engine::gather_parameters()).
  at::Tensor weight() const;
  at::Tensor bias() const;

  const TiledLinearOptions& options() const {
    return options_;
  }
  /// Where the parameters lie in the whole ones, by TensorImpl.
  std::map<const void*, bucket::Placement> placements() const;

 private:
  class TileImpl;
  using Values = std::function<void(torch::nn::LinearImpl& tile, int64_t first_out, int64_t first_in)>;
  void build(const Values& initialise);

  TiledLinearOptions options_;
  std::vector<int64_t> in_sizes_;
  std::vector<int64_t> out_sizes_;
  std::vector<std::shared_ptr<TileImpl>> tiles_; // row by row
};
TORCH_MODULE(TiledLinear);

/// placements() of all that are in `model`.
std::map<const void*, bucket::Placement> placements_of_tiles(const torch::nn::Module& model);

} // namespace trireme::zero
