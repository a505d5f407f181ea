#include <trireme/tokenizer/byte_alphabet.h>

#include <trireme/tokenizer/unicode.h>

#include <array>

namespace trireme::tokenizer {
namespace {

struct Alphabet {
  std::array<std::string, 256> chars;
  std::array<int, 0x200> bytes;

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      const char32_t code = printable ? static_cast<char32_t>(byte) : next++;
      append_utf8(chars[static_cast<size_t>(byte)], code);
      bytes[code] = byte;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet made;
  return made;
}

} // namespace

void append_byte_chars(std::string& out, std::string_view bytes) {
  const Alphabet& letters = alphabet();
  for (const char c : bytes) {
    out += letters.chars[static_cast<unsigned char>(c)];
  }
}

std::optional<std::string> bytes_of_chars(std::string_view chars) {
  const Alphabet& letters = alphabet();
  std::string bytes;
  bytes.reserve(chars.size());
  for (size_t at = 0; at < chars.size();) {
    const Char next = char_at(chars, at);
    if (next.code >= letters.bytes.size() || letters.bytes[next.code] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(letters.bytes[next.code]);
    at += next.bytes;
  }
  return bytes;
}

} // namespace trireme::tokenizer
