#include <trireme/shards/zero/tiled_linear.h>

#include <trireme/base/error.h>

#include <torch/nn/init.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>

namespace trireme::zero {
namespace {

// The first parts are one longer if `parts` does not divide `size`.
std::vector<int64_t> split(int64_t size, int64_t parts) {
  std::vector<int64_t> sizes;
  for (int64_t part = 0; part < parts; ++part) {
    sizes.push_back(size / parts + (part < size % parts ? 1 : 0));
  }
  return sizes;
}

std::string name_of_tile(int64_t out, int64_t in) {
  return concat("tile_", out, '_', in);
}

} // namespace

/// One tile: always a unit of its own.
class TiledLinearImpl::TileImpl : public ShardedImpl<torch::nn::LinearImpl> {
 public:
  using ShardedImpl<torch::nn::LinearImpl>::ShardedImpl;
  bool is_tile() const override { return true; }
};

TiledLinearOptions tiles_within(int64_t memory_bytes, int64_t in_features, int64_t out_features, bool bias,
                                int64_t element_bytes) {
  const int64_t elements = memory_bytes / (2 * element_bytes);
  if (elements < (bias ? 2 : 1) || in_features < 1 || out_features < 1) {
    throw InputError("zero",
                     concat("two tiles of a linear layer [", out_features, ", ", in_features, "] do not fit into ",
                            memory_bytes, " bytes"),
                     "Allow more memory.");
  }
  TiledLinearOptions options{in_features, out_features, bias, 1, 1};
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t row = in_features + (bias ? 1 : 0);
  if (row <= elements) {
    options.out_splits = ceil_div(out_features, elements / row);
  } else {
    options.out_splits = out_features;
    options.in_splits = ceil_div(in_features, elements - (bias ? 1 : 0));
  }
  return options;
}

TiledLinearImpl::TiledLinearImpl(const TiledLinearOptions& options) : options_(options) {
  const double bound = 1 / std::sqrt(static_cast<double>(options_.in_features)); // a Linear's
  build([bound](torch::nn::LinearImpl& tile, int64_t, int64_t) {
    torch::nn::init::uniform_(tile.weight, -bound, bound);
    if (tile.bias.defined()) {
      torch::nn::init::uniform_(tile.bias, -bound, bound);
    }
  });
}

TiledLinearImpl::TiledLinearImpl(const torch::nn::LinearImpl& linear, TiledLinearOptions options) : options_(options) {
  options_.in_features = linear.weight.size(1);
  options_.out_features = linear.weight.size(0);
  options_.bias = linear.bias.defined();
  const torch::NoGradGuard no_grad;
  build([&](torch::nn::LinearImpl& tile, int64_t first_out, int64_t first_in) {
    const auto take = [](at::Tensor& into, const at::Tensor& values) {
      if (into.scalar_type() != values.scalar_type() || into.device() != values.device()) {
        into.set_data(values.clone());
      }
      into.copy_(values);
    };
    const at::Tensor rows = linear.weight.detach().narrow(0, first_out, tile.weight.size(0));
    take(tile.weight, rows.narrow(1, first_in, tile.weight.size(1)));
    if (tile.bias.defined()) {
      take(tile.bias, linear.bias.detach().narrow(0, first_out, tile.bias.size(0)));
    }
  });
}

void TiledLinearImpl::build(const Values& initialise) {
  const auto check = [](int64_t size, int64_t splits, const char* side) {
    if (size < 1 || splits < 1 || splits > size) {
      throw InputError("zero", concat("a linear layer cannot split ", size, ' ', side, " features into ", splits),
                       "Each part needs at least one feature.");
    }
  };
  check(options_.in_features, options_.in_splits, "in");
  check(options_.out_features, options_.out_splits, "out");
  in_sizes_ = split(options_.in_features, options_.in_splits);
  out_sizes_ = split(options_.out_features, options_.out_splits);
  int64_t first_out = 0;
  for (int64_t o = 0; o < options_.out_splits; ++o) {
    int64_t first_in = 0;
    for (int64_t i = 0; i < options_.in_splits; ++i) {
      const auto options = torch::nn::LinearOptions(in_sizes_[i], out_sizes_[o]).bias(options_.bias && i == 0);
      tiles_.push_back(std::make_shared<TileImpl>(
          [&](torch::nn::LinearImpl& tile) { initialise(tile, first_out, first_in); }, options));
      register_module(name_of_tile(o, i), tiles_.back());
      first_in += in_sizes_[i];
    }
    first_out += out_sizes_[o];
  }
}

at::Tensor TiledLinearImpl::forward(const at::Tensor& x) {
  const std::vector<at::Tensor> parts = options_.in_splits == 1 ? std::vector{x} : x.split_with_sizes(in_sizes_, -1);
  std::vector<at::Tensor> outputs;
  auto tile = tiles_.begin();
  for (int64_t o = 0; o < options_.out_splits; ++o) {
    at::Tensor sum = (*tile++)->forward(parts.front());
    for (int64_t i = 1; i < options_.in_splits; ++i) {
      sum = sum + (*tile++)->forward(parts[i]);
    }
    outputs.push_back(std::move(sum));
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs, -1);
}

at::Tensor TiledLinearImpl::weight() const {
  std::vector<at::Tensor> rows;
  for (auto tile = tiles_.begin(); tile != tiles_.end(); tile += options_.in_splits) {
    std::vector<at::Tensor> row;
    std::transform(tile, tile + options_.in_splits, std::back_inserter(row),
                   [](const auto& one) { return one->weight.detach(); });
    rows.push_back(at::cat(row, 1));
  }
  return at::cat(rows, 0);
}

at::Tensor TiledLinearImpl::bias() const {
  std::vector<at::Tensor> parts;
  for (auto tile = tiles_.begin(); tile != tiles_.end() && options_.bias; tile += options_.in_splits) {
    parts.push_back((*tile)->bias.detach());
  }
  return parts.empty() ? at::Tensor() : at::cat(parts, 0);
}

std::map<const void*, bucket::Placement> TiledLinearImpl::placements() const {
  std::map<const void*, bucket::Placement> found;
  auto tile = tiles_.begin();
  int64_t first_out = 0;
  for (int64_t o = 0; o < options_.out_splits; ++o) {
    int64_t first_in = 0;
    for (int64_t i = 0; i < options_.in_splits; ++i, ++tile) {
      bucket::Placement placement;
      placement.tile = name_of_tile(o, i);
      placement.global_shape = {options_.out_features, options_.in_features};
      placement.box_offset = {first_out, first_in};
      found[(*tile)->weight.unsafeGetTensorImpl()] = placement;
      if ((*tile)->bias.defined()) {
        placement.global_shape = {options_.out_features};
        placement.box_offset = {first_out};
        found[(*tile)->bias.unsafeGetTensorImpl()] = placement;
      }
      first_in += in_sizes_[i];
    }
    first_out += out_sizes_[o];
  }
  return found;
}

std::map<const void*, bucket::Placement> placements_of_tiles(const torch::nn::Module& model) {
  std::map<const void*, bucket::Placement> found;
  if (const auto* const tiled = dynamic_cast<const TiledLinearImpl*>(&model)) {
    found = tiled->placements();
  }
  for (const auto& child : model.children()) {
    found.merge(placements_of_tiles(*child));
  }
  return found;
}

} // namespace trireme::zero
