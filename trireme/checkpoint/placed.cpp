#include <trireme/checkpoint/placed.h>

namespace trireme::checkpoint {

Region region_of(const bucket::TensorInfo& tensor, int64_t begin, int64_t numel) {
  const bool is_box = !tensor.placement.box_offset.empty();
  return {tensor.placement.box_offset, is_box ? tensor.sizes : std::vector<int64_t>(), begin, begin + numel};
}

TensorShard shard_of(const bucket::TensorInfo& tensor, const std::string& name, const std::string& kind, int64_t begin, const at::Tensor& values) {
  const Region region = region_of(tensor, begin, values.numel());
  return {name, kind, tensor.global_shape(), begin, values, region.box_offset, region.box_size};
}

} // namespace trireme::checkpoint
