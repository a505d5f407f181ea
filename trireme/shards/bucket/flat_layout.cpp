#include <trireme/shards/bucket/flat_layout.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

namespace trireme::bucket {
namespace {

constexpr int64_t kAlignmentBytes = 64;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

} // namespace

std::string Placement::whole_name(const std::string& name) const {
  const std::string part = tile + '.';
  const size_t at = tile.empty() ? std::string::npos : name.rfind(part);
  return at == std::string::npos ? name : name.substr(0, at) + name.substr(at + part.size());
}

int64_t TensorInfo::numel() const {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

FlatLayout::FlatLayout(std::vector<TensorInfo> tensors, std::vector<int64_t> order, const LayoutOptions& options)
    : tensors_(std::move(tensors)),
      order_(std::move(order)),
      options_(options),
      position_(tensors_.size(), -1),
      bucket_of_(tensors_.size(), 0) {
  if (order_.size() != tensors_.size()) {
    throw Error("bucket", concat("the order names ", order_.size(), " of ", tensors_.size(), " tensors"));
  }
  const int64_t alignment = std::max<int64_t>(1, kAlignmentBytes / options_.element_bytes);
  const int64_t bucket_multiple = alignment * std::max<int64_t>(1, options_.shards);
  int64_t offset = 0;
  Bucket bucket;
  const auto close = [&] {
    bucket.end = bucket.begin + round_up(offset - bucket.begin, bucket_multiple);
    bucket.last_slot = static_cast<int64_t>(slots_.size());
    buckets_.push_back(bucket);
    offset = bucket.end;
    bucket = Bucket{offset, offset, bucket.last_slot, bucket.last_slot};
  };
  std::set<int64_t> closed_units;
  for (const int64_t tensor : order_) {
    if (tensor < 0 || tensor >= static_cast<int64_t>(tensors_.size()) || position_[tensor] != -1) {
      throw Error("bucket",
                  concat("the order is not a permutation: tensor ", tensor, " is out of range or named twice"));
    }
    const int64_t numel = tensors_[tensor].numel();
    const int64_t unit = tensors_[tensor].unit;
    const int64_t limit = buckets_.empty() ? options_.first_bucket_bytes : options_.bucket_bytes;
    const bool holds_some = static_cast<int64_t>(slots_.size()) > bucket.first_slot;
    const bool full = unit == TensorInfo::kNoUnit && (offset + numel - bucket.begin) * options_.element_bytes > limit;
    if (holds_some && (unit != bucket.unit || full)) {
      closed_units.insert(bucket.unit);
      close();
    }
    if (unit != TensorInfo::kNoUnit && closed_units.count(unit) != 0) {
      throw Error("bucket", concat("the order separates unit ", unit, ": tensor ", tensors_[tensor].name,
                                   " comes after tensors of another unit"));
    }
    bucket.unit = unit;
    position_[tensor] = static_cast<int64_t>(slots_.size());
    bucket_of_[tensor] = static_cast<int64_t>(buckets_.size());
    slots_.push_back(Slot{tensor, offset, offset + numel});
    offset = round_up(offset + numel, alignment);
  }
  if (static_cast<int64_t>(slots_.size()) > bucket.first_slot) {
    close();
  }
}

std::vector<TensorRange> FlatLayout::pieces_in(int64_t b, const Range& range) const {
  std::vector<TensorRange> pieces;
  for (int64_t s = buckets_[b].first_slot; s < buckets_[b].last_slot; ++s) {
    const Slot& slot = slots_[s];
    const int64_t begin = std::max(slot.begin, range.begin);
    const int64_t end = std::min(slot.end, range.end);
    if (begin < end) {
      pieces.push_back({slot.tensor, begin - slot.begin, end - begin, begin - range.begin});
    }
  }
  return pieces;
}

std::vector<std::string> FlatLayout::first_names() const {
  std::vector<std::string> names;
  for (const Bucket& bucket : buckets_) {
    names.push_back(tensors_[slots_[bucket.first_slot].tensor].name);
  }
  return names;
}

} // namespace trireme::bucket
