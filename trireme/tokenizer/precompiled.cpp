#include <trireme/tokenizer/precompiled.h>

#include <trireme/tokenizer/part_json.h>
#include <trireme/tokenizer/unicode.h>

#include <cstring>

namespace trireme::tokenizer {
namespace {

// Grapheme clusters of more bytes are replaced character by character.
constexpr size_t kMostBytesOfACluster = 5;

int base64_digit(char c) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const size_t at = kDigits.find(c);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

std::string from_base64(std::string_view text, const std::string& where) {
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  while (!text.empty() && text.back() == '=') {
    text.remove_suffix(1);
  }
  for (const char c : text) {
    const int digit = base64_digit(c);
    if (digit < 0) {
      fail_at(where, "precompiled_charsmap is not base64");
    }
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>(bits >> count & 0xff);
    }
  }
  return bytes;
}

// Of a unit of the double array.
bool has_leaf(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t value_of(uint32_t unit) {
  return unit & 0x7fffffff;
}
uint32_t label_of(uint32_t unit) {
  return unit & 0x800000ff;
}
uint32_t offset_of(uint32_t unit) {
  return unit >> 10 << (unit >> 6 & 8);
}

} // namespace

Precompiled::Precompiled(std::string_view base64, const std::string& where) : where_(where) {
  const std::string map = from_base64(base64, where);
  uint32_t bytes = 0;
  if (map.size() >= sizeof(bytes)) {
    std::memcpy(&bytes, map.data(), sizeof(bytes));
  }
  if (map.size() < sizeof(bytes) || bytes % sizeof(uint32_t) != 0 || bytes > map.size() - sizeof(bytes)) {
    fail_at(where, "precompiled_charsmap is cut");
  }
  units_.resize(bytes / sizeof(uint32_t));
  if (bytes > 0) { // data() is null
    std::memcpy(units_.data(), map.data() + sizeof(bytes), bytes);
  }
  replacements_ = map.substr(sizeof(bytes) + bytes);
}

std::optional<std::string_view> Precompiled::replacement(std::string_view part) const {
  if (units_.empty()) {
    return std::nullopt;
  }
  size_t at = offset_of(units_[0]);
  for (const char c : part) {
    const auto byte = static_cast<unsigned char>(c);
    at ^= byte;
    if (byte == 0 || at >= units_.size() || label_of(units_[at]) != byte) {
      return std::nullopt;
    }
    const uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (has_leaf(unit)) {
      const size_t begin = at < units_.size() ? value_of(units_[at]) : replacements_.size();
      if (begin >= replacements_.size()) {
        return std::nullopt;
      }
      const size_t end = replacements_.find('\0', begin);
      return std::string_view(replacements_).substr(begin, end == std::string::npos ? end : end - begin);
    }
  }
  return std::nullopt;
}

void Precompiled::append(std::string& out, std::string_view part) const {
  if (part.size() <= kMostBytesOfACluster) {
    if (const auto found = replacement(part)) {
      out += *found;
      return;
    }
  }
  for (size_t at = 0; at < part.size();) {
    const std::string_view one = part.substr(at, char_at(part, at).bytes);
    const auto found = replacement(one);
    out += found ? *found : one;
    at += one.size();
  }
}

bool Precompiled::apply(std::string& text) const {
  std::string out;
  out.reserve(text.size());
  for_each_grapheme(text, [&](std::string_view cluster) { append(out, cluster); });
  if (valid_utf8_prefix(out) != out.size()) {
    fail_at(where_, "precompiled_charsmap replaces a character by bytes that are not UTF-8");
  }
  text = std::move(out);
  return true;
}

} // namespace trireme::tokenizer
