#include <trireme/data/gzip.h>

#include <trireme/base/error.h>

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace trireme::data {
namespace {

uInt clamp(size_t bytes) {
  return static_cast<uInt>(std::min<size_t>(bytes, std::numeric_limits<uInt>::max() / 2));
}

} // namespace

class GunzipStream::Inflater {
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

GunzipStream::GunzipStream(std::string source) : source_(std::move(source)), inflater_(std::make_unique<Inflater>()) {}

GunzipStream::~GunzipStream() = default;

// Behind a member: the next one, or NULs, which are padding by custom.
void GunzipStream::begin_member(std::string_view packed) {
  if (state_ == State::between && packed[0] == '\x1f' && (packed.size() == 1 || packed[1] == '\x8b')) {
    inflateReset(inflater_->get());
    state_ = State::inside;
    return;
  }
  if (const size_t strange = packed.find_first_not_of('\0'); strange != std::string_view::npos) {
    throw InputError(
        "data", concat(source_, " is damaged: the data from byte ", used_ + strange, " on is neither gzip nor padding"),
        "Fetch or copy it again.");
  }
  state_ = State::padding;
}

size_t GunzipStream::read(std::string_view& packed, std::span<char> out) {
  Inflater& stream = *inflater_;
  size_t filled = 0;
  while (filled < out.size()) {
    if (state_ != State::inside) {
      if (packed.empty()) {
        break;
      }
      begin_member(packed);
    }
    if (state_ == State::padding) {
      used_ += packed.size();
      packed = {};
      break;
    }
    stream->next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream->avail_in = clamp(packed.size());
    stream->next_out = reinterpret_cast<Bytef*>(out.data() + filled);
    stream->avail_out = clamp(out.size() - filled);
    const uInt given = stream->avail_in;
    const uInt room = stream->avail_out;
    const int status = inflate(stream.get(), Z_NO_FLUSH);
    used_ += given - stream->avail_in;
    packed.remove_prefix(given - stream->avail_in);
    filled += room - stream->avail_out;
    if (status == Z_STREAM_END) {
      state_ = State::between;
    } else if (status == Z_BUF_ERROR) { // the output has room, so it needs more input
      break;
    } else if (status != Z_OK) {
      throw InputError("data",
                       concat(source_, " is damaged: ", stream->msg == nullptr ? "not a gzip stream" : stream->msg,
                              " near byte ", used_),
                       "Fetch or copy it again.");
    }
  }
  return filled;
}

void GunzipStream::finish() const {
  if (state_ == State::inside) {
    throw InputError("data", concat(source_, " ends in the middle of its gzip stream, after ", used_, " bytes"),
                     "It is cut off; fetch or copy it again.");
  }
}

bool is_gzip(std::string_view content) {
  return content.size() >= 2 && content[0] == '\x1f' && content[1] == '\x8b';
}

std::string gunzip(std::string_view content, size_t at_most, const std::string& source) {
  GunzipStream stream(source);
  std::string out;
  size_t filled = 0;
  while (filled < at_most) {
    // Grows with the decompressed data, because a header may state any size.
    out.resize(std::min(at_most, std::max<size_t>(filled * 2, 64 << 10)));
    filled += stream.read(content, std::span(out).subspan(filled));
    if (filled < out.size()) { // the input has ended
      stream.finish();
      break;
    }
  }
  out.resize(filled);
  return out;
}

} // namespace trireme::data
