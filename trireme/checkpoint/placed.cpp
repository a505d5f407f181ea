#include <trireme/checkpoint/placed.h>

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme::checkpoint {
namespace {

/// A region and the range of values that it holds.
struct PlacedRegion {
  Region region;
  int64_t first = 0;
  int64_t numel = 0;
};

std::vector<PlacedRegion> pieces_of(const bucket::TensorInfo& tensor, int64_t begin, int64_t numel) {
  const bucket::Placement& placement = tensor.placement;
  if (placement.parts == 1) {
    const bool is_box = !placement.box_offset.empty();
    return {{{placement.box_offset, is_box ? tensor.sizes : std::vector<int64_t>(), begin, begin + numel}, 0, numel}};
  }
  std::vector<PlacedRegion> pieces;
  const int64_t each = tensor.numel() / placement.parts;
  std::vector<int64_t> size = tensor.sizes;
  size[0] /= placement.parts;
  for (int64_t part = 0; part < placement.parts; ++part) {
    const int64_t first = std::max(begin, part * each);
    const int64_t last = std::min(begin + numel, (part + 1) * each);
    if (first < last) {
      std::vector<int64_t> offset = placement.box_offset;
      offset[0] += part * (placement.global_shape[0] / placement.parts);
      pieces.push_back({{offset, size, first - part * each, last - part * each}, first - begin, last - first});
    }
  }
  return pieces;
}

at::Tensor values_of(const PlacedRegion& piece, const at::Tensor& values) {
  return piece.numel == values.numel() ? values : values.reshape({-1}).narrow(0, piece.first, piece.numel);
}

} // namespace

std::vector<TensorShard> shards_of(const bucket::TensorInfo& tensor, const std::string& name, const std::string& kind,
                                   int64_t begin, const at::Tensor& values) {
  std::vector<TensorShard> shards;
  for (const PlacedRegion& piece : pieces_of(tensor, begin, values.numel())) {
    shards.push_back({name, kind, tensor.global_shape(), piece.region.begin, values_of(piece, values),
                      piece.region.box_offset, piece.region.box_size});
  }
  return shards;
}

std::vector<TensorShard> lent_shards_of(const bucket::TensorInfo& tensor, const std::string& name,
                                        const std::string& kind, int64_t begin, int64_t numel, at::ScalarType type,
                                        const std::shared_ptr<Lender>& by, int64_t i) {
  const at::Tensor values = at::empty({numel}, at::TensorOptions(type).device(at::kMeta));
  std::vector<TensorShard> shards = shards_of(tensor, name, kind, begin, values);
  int64_t first = 0;
  for (TensorShard& shard : shards) {
    shard.lent = {by, i, first};
    first += shard.data.numel();
  }
  return shards;
}

void read_placed(const Checkpoint& saved, const std::string& name, const bucket::TensorInfo& tensor, int64_t begin,
                 const at::Tensor& values) {
  for (const PlacedRegion& piece : pieces_of(tensor, begin, values.numel())) {
    saved.read_into(name, piece.region, values_of(piece, values));
  }
}

} // namespace trireme::checkpoint
