#pragma once

#include <trireme/shards/bucket/flat_layout.h>
#include <trireme/shards/zero/sharded.h>

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
  /// Tiles along each side of the weight, at most the side's length. Sizes differ by at most one.
  int64_t in_splits = 1;
  int64_t out_splits = 1;
};

/// The fewest tiles such that two of them, the one in use and the prefetched one, fit into `memory_bytes` with elements
/// of `element_bytes`. Cuts outputs first, so that every result stays one sum. Errors: InputError if two elements do
/// not fit.
TiledLinearOptions tiles_within(int64_t memory_bytes, int64_t in_features, int64_t out_features, bool bias = true,
                                int64_t element_bytes = 4);

/// A torch::nn::Linear that does not fit into memory at ZeRO stage 3: y = x W^T + b with W in out_splits x in_splits
/// tiles. Each tile is a unit, gathered and released one after the other in forward, backward and recomputation. If a
/// tile lies inside another unit, the rest of that unit stays gathered. At most the current tile and the next are
/// gathered.
///
/// With in_splits = 1 every output is one sum, bit-equal to a Linear's if the BLAS adds in the same order for any
/// number of outputs (MKL does not always). Otherwise in_splits sums are added. Gradients likewise. The initial values
/// have a Linear's distribution. Parameters are "tile_<o>_<i>.weight" and, with i = 0, ".bias". Checkpoints have one
/// "weight" and one "bias": they fit a Linear and other tiles, and the reverse. LAMB, which needs a parameter's norm,
/// is refused. Under zero::Init each tile is sharded before the next one is built; without it, and in a list of layers,
/// all are in memory at first. Shapes: x [..., in_features] -> [..., out_features]. Cost: a Linear's, plus one addition
/// per in_split beyond the first, plus one copy of the outputs with out_splits > 1. Source: Rajbhandari et al. 2021,
/// arXiv:2104.07857 (ZeRO-Infinity), section 5.1.3: memory-centric tiling.
class TiledLinearImpl : public torch::nn::Module {
 public:
  /// Errors: InputError for sizes that are not positive or more splits than features.
  explicit TiledLinearImpl(const TiledLinearOptions& options);
  /// Takes a Linear's values, sizes and bias; ignores those in `options`.
  TiledLinearImpl(const torch::nn::LinearImpl& linear, TiledLinearOptions options);

  at::Tensor forward(const at::Tensor& x);

  /// Returns assembled copies: [out_features, in_features], and [out_features] or undefined. The parameters must be
  /// gathered (Engine::gather_parameters()).
  at::Tensor weight() const;
  at::Tensor bias() const;

  const TiledLinearOptions& options() const { return options_; }
  /// Placements of the parameters in the assembled ones, by TensorImpl.
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

/// placements() of all TiledLinears in `model`.
std::map<const void*, bucket::Placement> placements_of_tiles(const torch::nn::Module& model);

} // namespace trireme::zero
