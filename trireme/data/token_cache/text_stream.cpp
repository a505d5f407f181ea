#include <trireme/data/token_cache/text_stream.h>

#include <trireme/data/tokenize/block_maker.h>

#include <algorithm>

namespace trireme::data {

bool TextStream::fill() {
  while (file_ != nullptr || opened_ < files_.size()) {
    if (file_ == nullptr) {
      file_ = std::make_unique<InputFile>(files_[opened_++]);
    }
    if (file_->read(rest_, kBlockBytes)) {
      return true;
    }
    file_.reset();
  }
  return false;
}

bool TextStream::next(uint64_t end, std::string& piece) {
  if (rest_.empty() && !fill()) {
    return false;
  }
  size_t count = static_cast<size_t>(std::min<uint64_t>(rest_.size(), position_ < end ? end - position_ : 0));
  if (position_ >= end) { // the rest of a character that begins before `end`
    const auto begins = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; };
    count = static_cast<size_t>(std::ranges::find_if(rest_, begins) - rest_.begin());
  }
  piece.assign(rest_, 0, count);
  rest_.erase(0, count);
  position_ += count;
  return count > 0;
}

} // namespace trireme::data
