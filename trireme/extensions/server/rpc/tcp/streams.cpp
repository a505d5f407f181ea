#include <trireme/extensions/server/rpc/tcp/streams.h>

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace trireme::rpc::tcp {
namespace {

constexpr size_t kBuffer = 16 << 10;
constexpr size_t kPartsAtOnce = 32;

/// Copies the beginning of `from` to `to`, and advances both spans.
template <typename Element>
void move_some(std::span<const std::byte>& from, std::span<Element>& to) {
  const size_t count = std::min(from.size(), to.size());
  if (count > 0) {
    std::memcpy(to.data(), from.data(), count);
    from = from.subspan(count);
    to = to.subspan(count);
  }
}

} // namespace

FrameReader::FrameReader() : buffer_(kBuffer) {}

void FrameReader::consume(FrameTaker& taker) {
  while (true) {
    std::span<const std::byte> left(buffer_.data() + begin_, end_ - begin_);
    if (!in_frame_) {
      if (left.size() < kHeadBytes) {
        break;
      }
      const FrameTaker::Place place = taker.begin(left.first<kHeadBytes>());
      left = left.subspan(kHeadBytes);
      header_ = place.header;
      body_ = place.body;
      in_frame_ = true;
    }
    move_some(left, header_);
    if (header_.empty()) {
      move_some(left, body_);
    }
    begin_ = end_ - left.size();
    if (!filled()) {
      break;
    }
    in_frame_ = false;
    taker.finished();
  }
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0) { // less than a head is left
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
}

bool FrameReader::read_some(int socket, FrameTaker& taker, size_t budget) {
  for (size_t read = 0; read < budget;) {
    std::array<iovec, 3> parts;
    size_t count = 0;
    if (in_frame_) { // the buffer is empty
      for (const auto& part : {std::span(reinterpret_cast<std::byte*>(header_.data()), header_.size()), body_}) {
        if (!part.empty()) {
          parts[count++] = {part.data(), part.size()};
        }
      }
    }
    parts[count++] = {buffer_.data() + end_, buffer_.size() - end_};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return true;
    }
    if (got <= 0) {
      return false;
    }
    size_t left = static_cast<size_t>(got);
    size_t asked = 0;
    for (size_t part = 0; part < count; ++part) {
      asked += parts[part].iov_len;
    }
    read += left;
    if (in_frame_) {
      const size_t of_header = std::min(left, header_.size());
      header_ = header_.subspan(of_header);
      left -= of_header;
      const size_t of_body = std::min(left, body_.size());
      body_ = body_.subspan(of_body);
      left -= of_body;
      if (filled()) {
        in_frame_ = false;
        taker.finished();
      }
    }
    end_ += left;
    consume(taker);
    if (static_cast<size_t>(got) < asked) {
      return true; // nothing more has arrived
    }
  }
  return true;
}

void FrameWriter::add(const Head& head, std::string_view header, std::span<const std::byte> body,
                      std::shared_ptr<const void> owner) {
  const HeadBytes bytes = pack(head);
  Frame frame;
  frame.text.reserve(bytes.size() + header.size());
  frame.text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  frame.text += header;
  frame.body = body;
  frame.owner = std::move(owner);
  frames_.push_back(std::move(frame));
}

bool FrameWriter::send_some(int socket) {
  while (!frames_.empty()) {
    std::array<iovec, kPartsAtOnce> parts;
    size_t count = 0;
    size_t skip = gone_;
    size_t asked = 0;
    const auto add_part = [&](const void* data, size_t bytes) {
      const size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      if (bytes > skipped) {
        parts[count++] = {static_cast<std::byte*>(const_cast<void*>(data)) + skipped, bytes - skipped};
        asked += bytes - skipped;
      }
    };
    for (auto frame = frames_.begin(); frame != frames_.end() && count + 2 <= parts.size(); ++frame) {
      add_part(frame->text.data(), frame->text.size());
      add_part(frame->body.data(), frame->body.size());
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent < 0) {
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
    gone_ += static_cast<size_t>(sent);
    while (!frames_.empty() && gone_ >= frames_.front().text.size() + frames_.front().body.size()) {
      gone_ -= frames_.front().text.size() + frames_.front().body.size();
      frames_.pop_front();
    }
    if (static_cast<size_t>(sent) < asked) {
      return true; // the socket's buffer is full
    }
  }
  return true;
}

} // namespace trireme::rpc::tcp
