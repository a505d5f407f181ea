#pragma once

#include <trireme/data/batch.h>
#include <trireme/data/dataset.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace trireme::data {

/// Counts the samples in `tokens` tokens: sample i reads tokens [i*L, i*L + L], so N tokens give (N-1)/L.
/// Errors: InputError naming `source` for a length below 1 or fewer than L + 1 tokens.
int64_t count_windows(int64_t tokens, int64_t sequence_length, const std::string& source);

/// Stacks samples of a sequence of tokens: one int64 input and one target [B, L], the target one token later; or only
/// one of them. `read(begin, tokens)` fills `tokens` with the tokens from `begin` on.
Batch gather_windows(std::span<const int64_t> indices, int64_t sequence_length,
                     const std::function<void(int64_t, std::span<int64_t>)>& read, Part part = Part::all);

/// Throws Error when an index is not in [0, size): a caller's mistake, not the user's.
void check_indices(std::span<const int64_t> indices, int64_t size);

} // namespace trireme::data
