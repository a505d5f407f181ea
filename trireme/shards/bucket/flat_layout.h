#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::bucket {

/// Which part of the model's full parameter a rank holds.
struct Placement {
  /// Shape of the full parameter, and the offset in it of the box that this rank holds. Both empty: it holds all of it.
  std::vector<int64_t> global_shape = {};
  std::vector<int64_t> box_offset = {};
  /// Dim 0 of the full parameter has `parts` equal blocks in a row (queries, keys and values of one projection). The
  /// rank has the same box of each block, in a row; box_offset counts inside a block.
  int64_t parts = 1;
  /// Number of the group of ranks that hold the same elements and sum their gradients (parallel::ReduceGroups). 0: the
  /// data group.
  int reduce_group = 0;
  /// Whether this rank counts it in the gradient norm and saves it in checkpoints. False if another rank, or another
  /// copy, counts the same elements.
  bool counts_in_norm = true;
  /// For parameters of one rank that are boxes of one full parameter: the part of the name that differs.
  /// "a.tile_0_1.weight" with tile "tile_0_1" is a box of "a.weight".
  std::string tile = {};

  /// The full parameter's name.
  std::string whole_name(const std::string& name) const;
};

/// A tensor to be placed in a flat buffer.
struct TensorInfo {
  std::string name;
  std::vector<int64_t> sizes;
  /// Tensors of one unit (0 and up) share a bucket of their own, which is gathered and freed as one. kNoUnit: any
  /// bucket.
  int64_t unit = kNoUnit;
  /// Index among all parameters of the model, of all types. Gradients are expected from the last to the first.
  int64_t place = 0;
  Placement placement = {};
  static constexpr int64_t kNoUnit = -1;

  int64_t numel() const;
  /// Shape of the full parameter; `sizes` may be a box of it.
  const std::vector<int64_t>& global_shape() const {
    return placement.global_shape.empty() ? sizes : placement.global_shape;
  }
};

/// Position of a tensor in the flat buffer, in elements.
struct Slot {
  int64_t tensor = 0; ///< index into the list that the layout was made from
  int64_t begin = 0;
  int64_t end = 0;
};

/// Elements [begin, end) of a flat buffer.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t numel() const { return end - begin; }
};

/// The part of tensor `i` in a range of the buffer: elements [begin, begin + numel) of its row-major order, which are
/// elements [first, first + numel) of the range.
struct TensorRange {
  int64_t i = 0;
  int64_t begin = 0;
  int64_t numel = 0;
  int64_t first = 0;
};

/// The unit of one collective: elements [begin, end) with slots [first_slot, last_slot).
struct Bucket {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t first_slot = 0;
  int64_t last_slot = 0;
  int64_t unit = TensorInfo::kNoUnit;

  int64_t numel() const { return end - begin; }
};

struct LayoutOptions {
  int64_t element_bytes = 4;
  /// A bucket closes before it would exceed this; a larger tensor gets its own bucket.
  int64_t bucket_bytes = 25 << 20;
  /// The first bucket is smaller so that communication starts early.
  int64_t first_bucket_bytes = 1 << 20;
  /// Each bucket's length is a multiple of shards * 64 bytes, so that it divides evenly.
  int64_t shards = 1;
};

/// Orders tensors one after another, each on a 64-byte boundary, and cuts the result into buckets. Gaps are zero and
/// stay zero. Pure arithmetic: every rank computes the same layout from the same list.
///
/// `order` has the indices into `tensors` in buffer order: the order in which gradients are expected, so that buckets
/// fill from the front during backward. Tensors of one unit are adjacent in it.
class FlatLayout {
 public:
  FlatLayout() = default;
  /// Throws Error if `order` is not a permutation of the tensors, or separates tensors of a unit.
  FlatLayout(std::vector<TensorInfo> tensors, std::vector<int64_t> order, const LayoutOptions& options);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// In buffer order.
  const std::vector<Slot>& slots() const { return slots_; }
  /// The slot of tensor `tensor` (index in tensors()).
  const Slot& slot_of(int64_t tensor) const { return slots_[position_[tensor]]; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  int64_t bucket_of(int64_t tensor) const { return bucket_of_[tensor]; }
  /// The parts of tensors in `range` of bucket `b`, in buffer order; gaps belong to none.
  std::vector<TensorRange> pieces_in(int64_t b, const Range& range) const;
  /// The name of each bucket's first tensor.
  std::vector<std::string> first_names() const;
  const std::vector<int64_t>& order() const { return order_; }
  const LayoutOptions& options() const { return options_; }
  /// Length of the buffer, gaps included.
  int64_t numel() const { return buckets_.empty() ? 0 : buckets_.back().end; }

 private:
  std::vector<TensorInfo> tensors_;
  std::vector<int64_t> order_;
  LayoutOptions options_;
  std::vector<Slot> slots_;
  std::vector<int64_t> position_;
  std::vector<Bucket> buckets_;
  std::vector<int64_t> bucket_of_;
};

} // namespace trireme::bucket
