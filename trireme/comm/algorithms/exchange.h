#pragma once

#include <trireme/comm/algorithms/all_reduce.h>
#include <trireme/kernels/kernels.h>

#include <array>

namespace trireme::comm {

/// A range of a tensor's elements.
struct Block {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

/// Block `index` of `parts` nearly equal ones of `count` elements.
inline Block block_of(int64_t count, int64_t index, int64_t parts) {
  return {count * index / parts, count * (index + 1) / parts};
}

/// Use of a block on arrival.
enum class Arrival {
  replace, ///< it is the result
  combine, ///< it is reduced into the present values
};

/// The steps of an all-reduce over messages on this rank, counted.
class Exchange {
 public:
  static constexpr int kNobody = -1;
  static constexpr int64_t kSegmentBytes = 256 << 10;

  /// Errors: Error for a tensor that the kernels cannot reduce, or that is not contiguous.
  Exchange(const Group& group, const at::Tensor& tensor, ReduceOp op);

  /// One step: sends `out` to rank `to` and receives `in` from rank `from`; kNobody omits either. The two blocks do not
  /// overlap. Both sides of a block give the same Arrival, because it decides how the block is cut.
  void step(int to, Block out, int from, Block in, Arrival arrival);

  int64_t count() const { return flat_.numel(); }
  const Traffic& traffic() const { return traffic_; }

 private:
  int64_t segment(Arrival arrival, const Block& block) const;
  void send(int to, Block block, Arrival arrival, std::vector<Work>& sent);
  void receive_and_combine(int from, Block block);
  void combine(Block block, const at::Tensor& arrived);

  const Group& group_;
  at::Tensor flat_;
  kernels::Element element_;
  kernels::Combine combine_;
  std::array<at::Tensor, 2> arrived_;
  Traffic traffic_;
};

} // namespace trireme::comm
