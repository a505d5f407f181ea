#pragma once

#include <trireme/bucket/flat_layout.h>

#include <cstdint>
#include <vector>

namespace trireme::bucket {

/// Chunks end at a multiple of so many elements from where a range's part of a tensor begins: whole blocks of the
/// kernels (norms, 8-bit states), so that cuts change no number.
inline constexpr int64_t kChunkAlignment = 16384;

/// Cuts `range`, a part of bucket `b`, into chunks of at most `most` elements (at least kChunkAlignment), in order. One
/// chunk if it fits, also of an empty range.
std::vector<Range> chunks_of(const FlatLayout& layout, int64_t b, const Range& range, int64_t most);

} // namespace trireme::bucket
