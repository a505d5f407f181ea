#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace trireme::bucket {

/// libtorch rounds page-locked memory up to powers of two, so pieces are cut from blocks of such sizes: 256 MiB, or
/// several pieces if those are large, and the rest at the end. Pieces of similar size lose less than an eighth. A last
/// piece that fits no smaller power takes up to twice its size.
inline constexpr int64_t kPinnedBlock = int64_t{256} << 20;
inline constexpr int64_t kPinnedAlignment = 64;

constexpr int64_t pinned_piece(int64_t bytes) {
  return (bytes + kPinnedAlignment - 1) / kPinnedAlignment * kPinnedAlignment;
}

/// Bytes of the next block for this piece; `left` counts it and all later ones. Both are pinned_piece()s.
constexpr int64_t pinned_block(int64_t piece, int64_t left) {
  const auto floor = [](int64_t bytes) { return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes))); };
  const int64_t block = floor(std::min(left, std::max(kPinnedBlock, 16 * piece)));
  return block >= piece ? block : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(piece)));
}

/// Total bytes of the blocks from which pieces of these sizes are cut, in this order.
inline int64_t pinned_bytes(const std::vector<int64_t>& pieces) {
  int64_t left = 0;
  for (const int64_t bytes : pieces) {
    left += pinned_piece(bytes);
  }
  int64_t all = 0;
  int64_t rest = 0; // left in the block
  for (const int64_t bytes : pieces) {
    const int64_t piece = pinned_piece(bytes);
    if (piece > rest) {
      rest = pinned_block(piece, left);
      all += rest;
    }
    rest -= piece;
    left -= piece;
  }
  return all;
}

} // namespace trireme::bucket
