#include <trireme/data/fetch_rdata.h>

#include <trireme/base/error.h>

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace trireme::data {
namespace {

constexpr size_t kMostBlockBytes = size_t{256} << 20;
constexpr const char* kAdvice = "The file is damaged or of another kind; download the package again.";

// R's SEXP types and the encoding bits of a CHARSXP's "general purpose" field.
constexpr uint32_t kCharacter = 9;
constexpr uint32_t kCharacterVector = 16;
constexpr uint32_t kHasObject = 1u << 8;
constexpr uint32_t kHasAttributes = 1u << 9;
constexpr uint32_t kHasTag = 1u << 10;
constexpr uint32_t kBytesEncoding = 1u << (12 + 1);
constexpr uint32_t kLatin1Encoding = 1u << (12 + 2);

uint32_t big_endian(std::string_view four) {
  uint32_t value = 0;
  for (const char c : four) {
    value = value << 8 | static_cast<unsigned char>(c);
  }
  return value;
}

class BlockReader {
 public:
  BlockReader(std::string_view bytes, std::string source) : bytes_(bytes), source_(std::move(source)) {}

  std::vector<std::string> strings() {
    header();
    const uint32_t flags = word("the object's type");
    if ((flags & 0xff) != kCharacterVector || (flags & (kHasObject | kHasAttributes | kHasTag)) != 0) {
      fail(concat("holds an R object of type ", flags & 0xff, flags & kHasAttributes ? " with attributes" : "",
                  ", only plain character vectors (type 16) are read"));
    }
    const uint32_t count = word("the number of strings");
    // A string has at least eight bytes, so a wrong count fails before memory is allocated.
    if (count > (bytes_.size() - at_) / 8) {
      fail(concat("claims ", count, " strings, but has room for ", (bytes_.size() - at_) / 8));
    }
    std::vector<std::string> out;
    out.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      out.push_back(string());
    }
    if (at_ != bytes_.size()) {
      fail(concat(bytes_.size() - at_, " bytes follow the last string"));
    }
    return out;
  }

 private:
  void header() {
    if (take(2, "the format") != "X\n") {
      at_ = 0;
      fail("does not begin with R's binary (XDR) mark");
    }
    const uint32_t version = word("the version");
    if (version != 2 && version != 3) {
      fail(concat("has serialisation version ", version, ", supported are 2 and 3"));
    }
    word("the writer's version");
    word("the oldest reader's version");
    if (version == 3) {
      const uint32_t length = word("the encoding's length");
      take(length, "the encoding's name");
    }
  }

  std::string string() {
    const uint32_t flags = word("a string's type");
    if ((flags & 0xff) != kCharacter || (flags & (kHasObject | kHasAttributes | kHasTag | kBytesEncoding)) != 0) {
      at_ -= 4;
      fail(concat("expected a string, found flags ", flags));
    }
    const uint32_t length = word("a string's length");
    if (length == UINT32_MAX) {
      return ""; // NA
    }
    const std::string_view text = take(length, "a string");
    if ((flags & kLatin1Encoding) == 0) {
      return std::string(text);
    }
    std::string utf8;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x80) {
        utf8 += c;
      } else {
        utf8 += static_cast<char>(0xc0 | byte >> 6);
        utf8 += static_cast<char>(0x80 | (byte & 0x3f));
      }
    }
    return utf8;
  }

  uint32_t word(const char* what) { return big_endian(take(4, what)); }

  std::string_view take(size_t count, const char* what) {
    if (count > bytes_.size() - at_) {
      fail(concat("ends inside ", what, " (", count, " bytes needed, ", bytes_.size() - at_, " left)"));
    }
    const std::string_view part = bytes_.substr(at_, count);
    at_ += count;
    return part;
  }

  [[noreturn]] void fail(const std::string& happened) const {
    throw InputError("data", concat(source_, ", unpacked byte ", at_, ": ", happened), kAdvice);
  }

  std::string_view bytes_;
  std::string source_;
  size_t at_ = 0;
};

struct Inflated {
  std::string content;
  size_t consumed = 0;
};

// Unpacks the zlib stream at the beginning of `packed`, and returns its length.
Inflated inflate_first(std::string_view packed, size_t most_bytes, const std::string& source) {
  const auto fail = [&](const std::string& happened) {
    throw InputError("data", concat(source, ": ", happened), kAdvice);
  };
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) {
    throw Error("data", "zlib cannot start: out of memory?");
  }
  const std::unique_ptr<z_stream, int (*)(z_stream*)> cleanup(&stream, inflateEnd);

  Inflated result;
  std::string chunk(1 << 16, '\0');
  while (true) {
    constexpr size_t kMostAtOnce = size_t{1} << 30; // zlib counts in 32 bits
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + result.consumed));
    stream.avail_in = static_cast<uInt>(std::min(packed.size() - result.consumed, kMostAtOnce));
    stream.next_out = reinterpret_cast<Bytef*>(chunk.data());
    stream.avail_out = static_cast<uInt>(chunk.size());
    const uInt offered = stream.avail_in;
    const int code = ::inflate(&stream, Z_NO_FLUSH);
    const size_t taken = offered - stream.avail_in;
    const size_t made = chunk.size() - stream.avail_out;
    result.consumed += taken;
    result.content.append(chunk, 0, made);
    if (result.content.size() > most_bytes) {
      fail(concat("holds more than the ", most_bytes, " bytes that its header states or the limit allows"));
    }
    if (code == Z_STREAM_END) {
      return result;
    }
    if (code != Z_OK && code != Z_BUF_ERROR) {
      fail(concat("compressed data are damaged near byte ", result.consumed, " (",
                  stream.msg == nullptr ? zError(code) : stream.msg, ")"));
    }
    if (taken == 0 && made == 0) {
      fail(concat("compressed data end too early, after ", result.consumed, " bytes"));
    }
  }
}

} // namespace

std::vector<std::vector<std::string>> read_rdb(std::string_view bytes, const std::string& source) {
  std::vector<std::vector<std::string>> blocks;
  size_t at = 0;
  while (at < bytes.size()) {
    const std::string place = concat(source, ", block ", blocks.size() + 1, " at byte ", at);
    if (bytes.size() - at < 4) {
      throw InputError("data", concat(place, ": ends inside the block's length"), kAdvice);
    }
    const size_t length = big_endian(bytes.substr(at, 4));
    const Inflated block = inflate_first(bytes.substr(at + 4), std::min(length, kMostBlockBytes), place);
    if (block.content.size() != length) {
      throw InputError("data", concat(place, ": holds ", block.content.size(), " bytes, its header states ", length),
                       kAdvice);
    }
    blocks.push_back(BlockReader(block.content, place).strings());
    at += 4 + block.consumed;
  }
  if (blocks.empty()) {
    throw InputError("data", concat(source, " is empty"), kAdvice);
  }
  return blocks;
}

} // namespace trireme::data
