#pragma once

#include <trireme/shards/bucket/flat_layout.h>

#include <cstdint>
#include <vector>

namespace trireme::bucket {

/// Chunks end at a multiple of so many elements from where a range's part of a tensor begins: whole blocks of the
/// kernels (norms, 8-bit states), so that cuts change no number.
inline constexpr int64_t kChunkAlignment = 16384;

/// Neighbouring chunks of equal size.
struct ChunkRun {
  int64_t numel = 0; // of each
  int64_t count = 1;
};

/// Cuts `range`, a part of bucket `b`, into chunks of at most `most` elements (a multiple of kChunkAlignment), in
/// order. One chunk if it fits, also of an empty range. Cost: that of the tensors in the range, not of the chunks.
std::vector<ChunkRun> chunk_runs(const FlatLayout& layout, int64_t b, const Range& range, int64_t most);

/// The same as the range of each chunk.
std::vector<Range> chunks_of(const FlatLayout& layout, int64_t b, const Range& range, int64_t most);

} // namespace trireme::bucket
