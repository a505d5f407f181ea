#include <trireme/plan/estimate/compressed_traffic.h>

#include <trireme/comm/compressed_sizes.h>

#include <algorithm>

namespace trireme::estimate {
namespace {

using Compressor = compress::GradientCompressionOptions::Kind;

int64_t message_of_stretch(int64_t elements, const compress::GradientCompressionOptions& by) {
  switch (by.kind) {
    case Compressor::sign:
      return comm::kNumberBytes + comm::sign_bytes(elements);
    case Compressor::eight_bit:
      return comm::kNumberBytes * comm::scales_of(elements) + elements;
    case Compressor::top_k:
      return (comm::kNumberBytes + comm::kPlaceBytes) * comm::largest_of(elements, by.ratio);
    case Compressor::power_sgd:
    case Compressor::none:
      break;
  }
  return 0;
}

// Bytes of the message of elements [begin, end) of a bucket.
int64_t message_of(const bucket::FlatLayout& layout, const bucket::Bucket& bucket, int64_t begin, int64_t end,
                   const compress::GradientCompressionOptions& by) {
  int64_t bytes = 0;
  for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
    const bucket::Slot& slot = layout.slots()[s];
    const int64_t last = std::min(slot.end, end);
    for (int64_t at = std::max(slot.begin, begin); at < last; at += comm::kLongestStretch) {
      bytes += message_of_stretch(std::min(comm::kLongestStretch, last - at), by);
    }
  }
  return bytes;
}

// Factors of matrices, and other parameters uncompressed, in two all-reduces.
int64_t low_rank_bytes(const bucket::FlatLayout& layout, const bucket::Bucket& bucket, int64_t rank, int64_t ranks) {
  int64_t first = bucket.numel();
  int64_t second = 0;
  for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
    const bucket::Slot& slot = layout.slots()[s];
    const auto& sizes = layout.tensors()[slot.tensor].sizes;
    const int64_t numel = slot.end - slot.begin;
    const int64_t rows = sizes.size() < 2 || numel == 0 ? 1 : sizes.front();
    const int64_t columns = numel / rows;
    if (comm::has_factors(rank, rows, columns)) {
      first += rank * rows - numel;
      second += rank * columns;
    }
  }
  const auto sent = [&](int64_t numbers) { return 2 * (comm::kNumberBytes * numbers * (ranks - 1) / ranks); };
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
    const int64_t each = comm::range_elements(bucket.numel(), ranks);
    int64_t longest = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t begin = std::min(bucket.begin + rank * each, bucket.end);
      longest = std::max(longest, message_of(layout, bucket, begin, std::min(begin + each, bucket.end), by));
    }
    bytes += 2 * comm::whole_multiple(longest, comm::kMessageBytes) * (ranks - 1);
  }
  return bytes;
}

} // namespace trireme::estimate
