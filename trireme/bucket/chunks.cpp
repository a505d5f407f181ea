#include <trireme/bucket/chunks.h>

#include <algorithm>

namespace trireme::bucket {

std::vector<Range> chunks_of(const FlatLayout& layout, int64_t b, const Range& range, int64_t most) {
  if (range.numel() <= most) {
    return {range};
  }
  std::vector<Range> chunks;
  const std::vector<Piece> pieces = layout.pieces_in(b, range);
  for (int64_t begin = range.begin; begin < range.end; begin = chunks.back().end) {
    int64_t end = std::min(range.end, begin + std::max(most, kChunkAlignment));
    for (const Piece& piece : pieces) {
      const int64_t first = range.begin + piece.first;
      if (first < end && end < first + piece.numel) {
        end = first + (end - first) / kChunkAlignment * kChunkAlignment;
      }
    }
    chunks.push_back({begin, end});
  }
  return chunks;
}

} // namespace trireme::bucket
