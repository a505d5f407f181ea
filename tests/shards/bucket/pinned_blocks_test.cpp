// Pieces of page-locked memory: how much their blocks have beyond them.
#include <trireme/shards/bucket/pinned_blocks.h>

#include <gmock/gmock.h>

#include <vector>

namespace trireme::bucket {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST(PinnedBlocksTest, BlocksArePowersOfTwoAndHoldSeveralPieces) {
  EXPECT_EQ(pinned_block(kMiB, int64_t{1} << 40), 256 * kMiB);
  EXPECT_EQ(pinned_block(100 * kMiB, int64_t{1} << 40), 1024 * kMiB) << "ten of them";
  EXPECT_EQ(pinned_block(kMiB, 130 * kMiB), 128 * kMiB) << "not 256";
  EXPECT_EQ(pinned_block(100 * kMiB, 110 * kMiB), 128 * kMiB) << "the last one";
  EXPECT_EQ(pinned_block(64, 64), 64);
  EXPECT_EQ(pinned_bytes({}), 0);
}

// Of 13 billion parameters by the layer: 1.26 GB each, which by themselves would take 2.15 GB.
TEST(PinnedBlocksTest, LittleIsLostOfPiecesThatAreAlike) {
  for (const int64_t piece : {int64_t{1'258'291'200}, 100 * kMiB, 33 * kMiB, 3 * kMiB + 64, int64_t{640}}) {
    for (const int64_t count : {40, 120, 1000}) {
      const auto asked = static_cast<double>(piece * count);
      const auto taken = static_cast<double>(pinned_bytes(std::vector<int64_t>(static_cast<size_t>(count), piece)));
      EXPECT_GE(taken, asked);
      EXPECT_LE(taken, 1.125 * asked + 2 * static_cast<double>(piece)) << piece << " x " << count;
    }
  }
}

} // namespace
} // namespace trireme::bucket
