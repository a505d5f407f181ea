#include <trireme/base/error.h>
#include <trireme/shards/bucket/flat_layout.h>

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace trireme::bucket {
namespace {

std::vector<TensorInfo> vectors(const std::vector<int64_t>& lengths) {
  std::vector<TensorInfo> tensors;
  for (size_t i = 0; i < lengths.size(); ++i) {
    tensors.push_back({concat("t", i), {lengths[i]}});
  }
  return tensors;
}

std::vector<int64_t> in_order(size_t n) {
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

TEST(FlatLayoutTest, CutsBucketsByBytesAndKeepsTheFirstSmall) {
  LayoutOptions options;
  options.first_bucket_bytes = 4 * 100;
  options.bucket_bytes = 4 * 300;
  const FlatLayout layout(vectors({60, 60, 60, 200, 90, 1000, 5}), in_order(7), options);
  // 60 + pad = 64, a second 60 would pass 100 elements; 64 + 200 = 264 < 300; 1000 stands alone.
  ASSERT_EQ(layout.buckets().size(), 5u);
  EXPECT_EQ(layout.bucket_of(0), 0);
  EXPECT_EQ(layout.bucket_of(1), 1);
  EXPECT_EQ(layout.bucket_of(2), 1);
  EXPECT_EQ(layout.bucket_of(3), 2);
  EXPECT_EQ(layout.bucket_of(4), 2);
  EXPECT_EQ(layout.bucket_of(5), 3);
  EXPECT_EQ(layout.bucket_of(6), 4);
}

// Whatever the sizes: slots are aligned, disjoint and inside their bucket; buckets tile the buffer and divide among the
// shards.
TEST(FlatLayoutTest, HoldsItsPropertiesForRandomTensors) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> lengths(1 + random() % 20);
    for (int64_t& length : lengths) {
      length = random() % 500;
    }
    std::vector<int64_t> order = in_order(lengths.size());
    std::shuffle(order.begin(), order.end(), random);
    LayoutOptions options;
    options.shards = 1 + random() % 5;
    options.bucket_bytes = 4 * (1 + random() % 1000);
    options.first_bucket_bytes = 4 * (1 + random() % 200);
    const FlatLayout layout(vectors(lengths), order, options);
    int64_t end = 0;
    for (const Bucket& bucket : layout.buckets()) {
      EXPECT_EQ(bucket.begin, end);
      EXPECT_EQ(bucket.numel() % (16 * options.shards), 0);
      EXPECT_LT(bucket.first_slot, bucket.last_slot);
      int64_t slot_end = bucket.begin;
      for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
        const Slot& slot = layout.slots()[s];
        EXPECT_EQ(slot.tensor, order[s]);
        EXPECT_EQ(slot.begin % 16, 0);
        EXPECT_GE(slot.begin, slot_end);
        EXPECT_EQ(slot.end - slot.begin, lengths[slot.tensor]);
        slot_end = slot.end;
      }
      EXPECT_LE(slot_end, bucket.end);
      end = bucket.end;
    }
    EXPECT_EQ(layout.numel(), end);
  }
}

// The parts of a bucket's ranges have every element of its tensors once, and no gap.
TEST(FlatLayoutTest, PiecesOfRangesAreTheTensors) {
  std::mt19937 random(8);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> lengths(1 + random() % 12);
    for (int64_t& length : lengths) {
      length = random() % 300;
    }
    LayoutOptions options;
    options.shards = 1 + random() % 4;
    options.bucket_bytes = 4 * (1 + random() % 1000);
    const FlatLayout layout(vectors(lengths), in_order(lengths.size()), options);
    std::vector<std::vector<int64_t>> places(lengths.size()); // in the buffer, of each tensor's elements in order
    for (int64_t b = 0; b < std::ssize(layout.buckets()); ++b) {
      const Bucket& bucket = layout.buckets()[b];
      const int64_t share = bucket.numel() / options.shards;
      for (int64_t begin = bucket.begin; begin < bucket.end; begin += share) {
        for (const TensorRange& piece : layout.pieces_in(b, {begin, begin + share})) {
          EXPECT_EQ(piece.begin, std::ssize(places[piece.i]));
          EXPECT_GT(piece.numel, 0);
          EXPECT_GE(piece.first, 0);
          EXPECT_LE(piece.first + piece.numel, share);
          for (int64_t k = 0; k < piece.numel; ++k) {
            places[piece.i].push_back(begin + piece.first + k);
          }
        }
      }
    }
    for (size_t i = 0; i < lengths.size(); ++i) {
      std::vector<int64_t> expected(lengths[i]);
      std::iota(expected.begin(), expected.end(), layout.slot_of(static_cast<int64_t>(i)).begin);
      EXPECT_EQ(places[i], expected) << "tensor " << i;
    }
  }
}

TEST(FlatLayoutTest, RefusesAnOrderThatIsNoPermutation) {
  EXPECT_THROW(FlatLayout(vectors({1, 2}), {0, 0}, {}), Error);
  EXPECT_THROW(FlatLayout(vectors({1, 2}), {0, 2}, {}), Error);
  EXPECT_THROW(FlatLayout(vectors({1, 2}), {0}, {}), Error);
}

} // namespace
} // namespace trireme::bucket
