#include <trireme/estimate/compressed_traffic.h>

#include <algorithm>
#include <cmath>

namespace trireme::estimate {
namespace {

using Compressor = compress::GradientCompressionOptions::Kind;

// comm/compressed's: a rank's range and a message are multiples of 16, a stretch has a scale, or largest elements, of
// its own.
constexpr int64_t kMultiple = 16;
constexpr int64_t kLongestStretch = 2048;
constexpr int64_t kScaledElements = 256;
constexpr int64_t kNumberBytes = 4;
constexpr int64_t kPlaceBytes = 2;

int64_t parts_of(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

int64_t up(int64_t count) {
  return parts_of(count, kMultiple) * kMultiple;
}

int64_t message_of_stretch(int64_t elements, const compress::GradientCompressionOptions& by) {
  switch (by.kind) {
    case Compressor::sign:
      return kNumberBytes + parts_of(elements, 8);
    case Compressor::eight_bit:
      return kNumberBytes * parts_of(elements, kScaledElements) + elements;
    case Compressor::top_k:
      return (kNumberBytes + kPlaceBytes) * static_cast<int64_t>(std::ceil(by.ratio * static_cast<double>(elements)));
    case Compressor::power_sgd:
    case Compressor::none:
      break;
  }
  return 0;
}

// The message of the elements [begin, end) of a bucket.
int64_t message_of(const bucket::FlatLayout& layout, const bucket::Bucket& bucket, int64_t begin, int64_t end,
                   const compress::GradientCompressionOptions& by) {
  int64_t bytes = 0;
  for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
    const bucket::Slot& slot = layout.slots()[s];
    const int64_t last = std::min(slot.end, end);
    for (int64_t at = std::max(slot.begin, begin); at < last; at += kLongestStretch) {
      bytes += message_of_stretch(std::min(kLongestStretch, last - at), by);
    }
  }
  return bytes;
}

// Factors of a matrix, or what is not one as it is, in two all-reduces.
int64_t low_rank_bytes(const bucket::FlatLayout& layout, const bucket::Bucket& bucket, int64_t rank, int64_t ranks) {
  int64_t first = bucket.numel();
  int64_t second = 0;
  for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
    const bucket::Slot& slot = layout.slots()[s];
    const auto& sizes = layout.tensors()[slot.tensor].sizes;
    const int64_t numel = slot.end - slot.begin;
    const int64_t rows = sizes.size() < 2 || numel == 0 ? 1 : sizes.front();
    const int64_t columns = numel / rows;
    if (rank * (rows + columns) < numel) {
      first += rank * rows - numel;
      second += rank * columns;
    }
  }
  const auto sent = [&](int64_t numbers) { return 2 * (kNumberBytes * numbers * (ranks - 1) / ranks); };
  return sent(first) + sent(second);
}

} // namespace

int64_t compressed_bytes(const bucket::FlatLayout& layout, const compress::GradientCompressionOptions& by,
                         int64_t ranks) {
  int64_t bytes = 0;
  for (const bucket::Bucket& bucket : layout.buckets()) {
    if (by.kind == Compressor::power_sgd) {
      bytes += low_rank_bytes(layout, bucket, by.rank, ranks);
      continue;
    }
    const int64_t each = up(parts_of(bucket.numel(), ranks));
    int64_t longest = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t begin = std::min(bucket.begin + rank * each, bucket.end);
      longest = std::max(longest, message_of(layout, bucket, begin, std::min(begin + each, bucket.end), by));
    }
    bytes += 2 * up(longest) * (ranks - 1);
  }
  return bytes;
}

} // namespace trireme::estimate
