#pragma once

#include <cstddef>
#include <string_view>

namespace trireme::data {

/// Finds the end of the word that begins at byte `at` of `text`, by GPT-2's split pattern
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// (Radford et al. 2019). Words follow each other without gaps. A byte that is not part of valid
/// UTF-8 counts as neither letter, number nor space. Needs at < text.size().
size_t word_end(std::string_view text, size_t at);

/// Returns where the run of white space that ends at byte `end` begins; `end` if there is none.
size_t space_before(std::string_view text, size_t end);

/// Returns where the run of white space that begins at byte `at` ends; `at` if there is none.
size_t space_after(std::string_view text, size_t at);

} // namespace trireme::data
