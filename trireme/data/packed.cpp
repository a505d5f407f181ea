#include <trireme/data/packed.h>

#include <trireme/base/error.h>
#include <trireme/data/gzip.h>

#include <algorithm>
#include <cstdint>

namespace trireme::data {
namespace {

struct Packing {
  std::string_view magic;
  std::string_view name;
  std::string_view command;
};

// Includes gzip's third byte, its only method: files of numbers often begin with the first two bytes by chance.
constexpr Packing kPackings[] = {{"\x1f\x8b\x08", "gzip", "gunzip"},
                                 {"BZh", "bzip2", "bunzip2"},
                                 {{"\xFD"
                                   "7zXZ\0",
                                   6},
                                  "xz",
                                  "unxz"},
                                 {"\x28\xB5\x2F\xFD", "zstd", "unzstd"},
                                 {"PK\x03\x04", "zip", "unzip"},
                                 {"7z\xBC\xAF\x27\x1C", "7z", "7z x"}};
constexpr std::string_view kBlockOfBzip2 = "1AY&SY"; // pi; after "BZh" and a digit: a text may begin with BZh

const Packing* find_packing(std::string_view head) {
  for (const Packing& packing : kPackings) {
    if (head.starts_with(packing.magic) &&
        (packing.name != "bzip2" || head.substr(std::min<size_t>(4, head.size())).starts_with(kBlockOfBzip2))) {
      return &packing;
    }
  }
  return nullptr;
}

} // namespace

std::string_view packing_of(std::string_view head) {
  const Packing* packing = find_packing(head);
  return packing == nullptr ? "" : packing->name;
}

std::string unpack(std::string content, const std::string& source) {
  std::string where = source;
  if (is_gzip(content)) {
    content = gunzip(content, SIZE_MAX, source);
    where = concat("what is in ", source);
  }
  if (const Packing* packing = find_packing(content)) {
    throw InputError("data", concat(where, " is packed with ", packing->name, ", only one layer of gzip is supported"),
                     concat("Unpack it first (", packing->command, ") and name the unpacked file."));
  }
  return content;
}

} // namespace trireme::data
