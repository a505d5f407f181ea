#pragma once

#include <trireme/shards/bucket/flat_layout.h>

#include <cstdint>
#include <vector>

namespace trireme::bucket {

/// A chunk ends at a multiple of kChunkAlignment elements, counted from where the range's part of a tensor begins.
/// These are whole blocks of the kernels (norms, 8-bit states), so cuts change no number.
inline constexpr int64_t kChunkAlignment = 16384;

/// Neighbouring chunks of equal size.
struct ChunkRun {
  int64_t numel = 0; // of each chunk
  int64_t count = 1;
};

/// Cuts `range`, a part of bucket `b`, into chunks of at most `most` elements (a multiple of kChunkAlignment), in
/// order. Returns one chunk if the range fits or is empty. Cost: linear in the tensors of the range, not in the chunks.
std::vector<ChunkRun> chunk_runs(const FlatLayout& layout, int64_t b, const Range& range, int64_t most);

/// The same cut, as one range per chunk.
std::vector<Range> chunks_of(const FlatLayout& layout, int64_t b, const Range& range, int64_t most);

} // namespace trireme::bucket
