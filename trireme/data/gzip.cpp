#include <trireme/data/gzip.h>

#include <trireme/base/error.h>

#include <zlib.h>

#include <algorithm>
#include <limits>

namespace trireme::data {
namespace {

class Inflater {
 public:
  Inflater() {
    if (inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK) { // 16: gzip's header and checksum
      throw Error("data", "zlib could not be started: out of memory");
    }
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  z_stream* operator->() { return &stream_; }
  z_stream* get() { return &stream_; }

 private:
  z_stream stream_{};
};

uInt clamp(size_t bytes) {
  return static_cast<uInt>(std::min<size_t>(bytes, std::numeric_limits<uInt>::max() / 2));
}

} // namespace

bool is_gzip(std::string_view content) {
  return content.size() >= 2 && content[0] == '\x1f' && content[1] == '\x8b';
}

std::string gunzip(std::string_view content, size_t at_most, const std::string& source) {
  Inflater stream;
  std::string out;
  size_t filled = 0;
  size_t used = 0;
  while (filled < at_most) {
    // Grows with the decompressed data, because a header may state any size.
    out.resize(std::min(at_most, std::max<size_t>(filled * 2, 64 << 10)));
    stream->next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data() + used));
    stream->avail_in = clamp(content.size() - used);
    stream->next_out = reinterpret_cast<Bytef*>(out.data() + filled);
    stream->avail_out = clamp(out.size() - filled);
    const uInt given = stream->avail_in;
    const uInt room = stream->avail_out;
    const int status = inflate(stream.get(), Z_NO_FLUSH);
    used += given - stream->avail_in;
    filled += room - stream->avail_out;
    if (status == Z_STREAM_END) {
      const std::string_view rest = content.substr(used);
      if (!is_gzip(rest)) {
        if (const size_t strange = rest.find_first_not_of('\0');
            strange != std::string_view::npos) { // NULs are padding by custom
          throw InputError(
              "data",
              concat(source, " is damaged: the data from byte ", used + strange, " on is neither gzip nor padding"),
              "Fetch or copy it again.");
        }
        break;
      }
      inflateReset(stream.get());
    } else if (status == Z_BUF_ERROR) { // the output has room, so the input has ended
      throw InputError("data",
                       concat(source, " ends in the middle of its gzip stream, after ", content.size(), " bytes"),
                       "It is cut off; fetch or copy it again.");
    } else if (status != Z_OK) {
      throw InputError("data",
                       concat(source, " is damaged: ", stream->msg == nullptr ? "not a gzip stream" : stream->msg,
                              " near byte ", used),
                       "Fetch or copy it again.");
    }
  }
  out.resize(filled);
  return out;
}

} // namespace trireme::data
