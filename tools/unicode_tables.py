#!/usr/bin/env python3
"""Writes trireme/data/byte_level_bpe_unicode.cpp: which code points are \\p{L}, \\p{N} and \\s.

GPT-2's split pattern needs these three classes. PyPI tokenizers 0.23 has the ones of Unicode 16.0, so
the tables do too; a later version moves code points to "letter" that were unassigned before, and text
with them would be cut otherwise. Python's own unicodedata may be older or newer, hence:

    pip install unicodedata2==16.0.0
    python3 tools/unicode_tables.py > trireme/data/byte_level_bpe_unicode.cpp
"""
import sys

import unicodedata2 as unicodedata

WANTED_VERSION = "16.0.0"
# Unicode's White_Space property outside the general category Z. U+001C to U+001F, which Python's
# isspace() adds, are not in it.
CONTROL_SPACES = {0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x85}


def class_of(code: int) -> str:
    category = unicodedata.category(chr(code))
    if category[0] in "LN":
        return category[0]
    return "S" if category[0] == "Z" or code in CONTROL_SPACES else ""


def ranges():
    first, current = 0, ""
    for code in range(0x110001):
        now = class_of(code) if code < 0x110000 else ""
        if now != current:
            if current:
                yield first, code - 1, current
            first, current = code, now


def main() -> int:
    if unicodedata.unidata_version != WANTED_VERSION:
        print(f"Unicode {unicodedata.unidata_version} found, {WANTED_VERSION} needed", file=sys.stderr)
        return 1
    print(f"""// Written by tools/unicode_tables.py from Unicode {WANTED_VERSION}. Do not edit.
#include <trireme/data/byte_level_bpe_unicode.h>

#include <algorithm>
#include <iterator>

namespace trireme::data {{
namespace {{

struct Range {{
  char32_t first;
  char32_t last;
  CharClass kind;
}};

constexpr CharClass L = CharClass::letter;
constexpr CharClass N = CharClass::number;
constexpr CharClass S = CharClass::space;

// clang-format off
constexpr Range kRanges[] = {{""")
    line = " "
    for first, last, kind in ranges():
        item = f" {{{first:#x}, {last:#x}, {kind}}},"
        if len(line) + len(item) > 138:
            print(line)
            line = " "
        line += item
    print(line)
    print("""};
// clang-format on

} // namespace

CharClass char_class(char32_t code) {
  const Range* after = std::upper_bound(std::begin(kRanges), std::end(kRanges), code,
                                        [](char32_t value, const Range& range) { return value < range.first; });
  if (after == std::begin(kRanges) || code > std::prev(after)->last) {
    return CharClass::other;
  }
  return std::prev(after)->kind;
}

} // namespace trireme::data""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
