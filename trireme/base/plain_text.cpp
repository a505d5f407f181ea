#include <trireme/base/plain_text.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace trireme {
namespace {

constexpr std::string_view kMark = "\xEF\xBB\xBF";

struct Mark {
  std::string_view bytes;
  const char* encoding;
};
// Longer marks first: UTF-32's begins with UTF-16's.
constexpr Mark kOtherMarks[] = {
    {{"\xFF\xFE\0\0", 4}, "UTF-32"}, {{"\0\0\xFE\xFF", 4}, "UTF-32"}, {"\xFF\xFE", "UTF-16"}, {"\xFE\xFF", "UTF-16"}};

/// Counts of NUL bytes by position modulo 4.
using Nuls = std::array<uint64_t, 4>;

Nuls count_nuls(std::string_view content) {
  Nuls nuls{};
  size_t i = 0;
  for (; i + 4 <= content.size(); i += 4) {
    for (size_t place = 0; place < 4; ++place) {
      nuls[place] += content[i + place] == '\0' ? 1 : 0;
    }
  }
  for (; i < content.size(); ++i) {
    nuls[i % 4] += content[i] == '\0' ? 1 : 0;
  }
  return nuls;
}

std::string convert(std::string_view encoding, const std::string& source) {
  return concat("iconv -f ", encoding, " -t UTF-8 ", for_shell(source), " > NEW   and use NEW");
}

// Most languages' letters have a NUL byte in UTF-16 and UTF-32, at one position. "" if the positions vary.
std::string_view guess_encoding(const Nuls& nuls, uint64_t bytes) {
  const uint64_t even = nuls[0] + nuls[2];
  const uint64_t odd = nuls[1] + nuls[3];
  if ((even + odd) * 10 > bytes * 6) {
    return nuls[3] > nuls[0] ? "UTF-32LE" : nuls[0] > nuls[3] ? "UTF-32BE" : "";
  }
  if (odd > even * 9) {
    return "UTF-16LE";
  }
  return even > odd * 9 ? "UTF-16BE" : "";
}

} // namespace

std::string plain_text(std::string_view part, const std::string& source, std::string content) {
  for (const Mark& mark : kOtherMarks) {
    if (content.starts_with(mark.bytes)) {
      throw InputError(part, concat(source, " is ", mark.encoding, ", as its byte order mark says, and must be UTF-8"),
                       concat("Type: ", convert(mark.encoding, source)));
    }
  }
  const Nuls nuls = count_nuls(content);
  const uint64_t all = nuls[0] + nuls[1] + nuls[2] + nuls[3];
  const uint64_t bytes = content.size();
  constexpr uint64_t kFew = 8; // a few are more than 1 in 100 of a short text
  if (all * 100 >= bytes && (all >= kFew || all * 5 >= bytes * 2) && all > 0) {
    const std::string_view guess = guess_encoding(nuls, bytes);
    const std::string found =
        concat(source, guess.empty() ? " is not text: " : concat(" is probably ", guess, " and must be UTF-8: "), all,
               " of its ", bytes, " bytes are NUL");
    throw InputError(part, found,
                     guess.empty() ? concat("If it is UTF-16, type: ", convert("UTF-16LE", source),
                                            ". If NUL bytes are between the text, type: tr -d '\\0' < ",
                                            for_shell(source), " > NEW   and use NEW")
                                   : concat("Type: ", convert(guess, source)));
  }
  if (content.starts_with(kMark)) {
    content.erase(0, kMark.size());
  }
  return content;
}

} // namespace trireme
