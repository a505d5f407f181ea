#pragma once

namespace trireme::data {

/// Character classes of GPT-2's split pattern: \p{L}, \p{N}, \s and everything else.
enum class CharClass : unsigned char { other, letter, number, space };

/// Looks a code point up in Unicode 16.0's tables (the version that PyPI tokenizers 0.23 has).
/// Cost: a binary search in about 800 ranges.
CharClass char_class(char32_t code);

} // namespace trireme::data
