#include <trireme/shards/bucket/chunks.h>

#include <algorithm>

namespace trireme::bucket {

std::vector<ChunkRun> chunk_runs(const FlatLayout& layout, int64_t b, const Range& range, int64_t most) {
  if (range.numel() <= most) {
    return {{range.numel()}};
  }
  std::vector<ChunkRun> runs;
  const std::vector<TensorRange> pieces = layout.pieces_in(b, range);
  size_t next = 0; // the first piece that ends after `begin`
  for (int64_t begin = range.begin; begin < range.end; begin += runs.back().numel * runs.back().count) {
    while (next < pieces.size() && range.begin + pieces[next].first + pieces[next].numel <= begin) {
      ++next;
    }
    int64_t end = std::min(range.end, begin + std::max(most, kChunkAlignment));
    int64_t aligned_until = begin; // the end of a tensor in which a chunk may begin at `begin`
    for (size_t p = next; p < pieces.size() && range.begin + pieces[p].first < end; ++p) {
      const int64_t first = range.begin + pieces[p].first;
      const int64_t last = first + pieces[p].numel;
      if (first <= begin && (begin - first) % kChunkAlignment == 0) {
        aligned_until = last;
      }
      if (end < last) {
        end = first + (end - first) / kChunkAlignment * kChunkAlignment;
      }
    }
    const bool repeats = end - begin == most && most % kChunkAlignment == 0 && end <= aligned_until;
    runs.push_back({end - begin, repeats ? (aligned_until - begin) / most : 1});
  }
  return runs;
}

std::vector<Range> chunks_of(const FlatLayout& layout, int64_t b, const Range& range, int64_t most) {
  std::vector<Range> chunks;
  int64_t begin = range.begin;
  for (const ChunkRun& run : chunk_runs(layout, b, range, most)) {
    for (int64_t i = 0; i < run.count; ++i) {
      chunks.push_back({begin, begin + run.numel});
      begin += run.numel;
    }
  }
  return chunks;
}

} // namespace trireme::bucket
