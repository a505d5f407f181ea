#pragma once

#include <trireme/extensions/server/rpc/tcp/frames.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme::rpc::tcp {

/// Receives frames: gives the destination of each one's parts.
class FrameTaker {
 public:
  virtual ~FrameTaker() = default;
  struct Place {
    /// `header` has as many bytes as the head says, `body` as many as follow in the stream. Both must stay valid until
    /// finished().
    std::span<char> header;
    std::span<std::byte> body;
  };
  /// Errors: BadFrame.
  virtual Place begin(std::span<const std::byte, kHeadBytes> head) = 0;
  /// Called when the frame is complete. Errors: BadFrame.
  virtual void finished() = 0;
};

/// Splits the bytes of a non-blocking socket into frames. Bodies are read to their destination; only bytes that arrive
/// with a head are copied.
class FrameReader {
 public:
  FrameReader();
  /// Reads available bytes, at most about `budget`. Returns false if the peer has closed or broken the connection.
  /// Errors: the taker's.
  bool read_some(int socket, FrameTaker& taker, size_t budget);

 private:
  void consume(FrameTaker& taker);
  bool filled() const { return in_frame_ && header_.empty() && body_.empty(); }

  std::vector<std::byte> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool in_frame_ = false;
  /// The missing parts of the present frame.
  std::span<char> header_;
  std::span<std::byte> body_;
};

/// Sends frames to a non-blocking socket.
class FrameWriter {
 public:
  /// `body` must stay valid until the frame is sent or the writer is destroyed; `owner` is kept as long.
  void add(const Head& head, std::string_view header, std::span<const std::byte> body,
           std::shared_ptr<const void> owner = nullptr);
  /// Sends what the socket accepts. Returns false if the connection is broken.
  bool send_some(int socket);
  bool empty() const { return frames_.empty(); }

 private:
  struct Frame {
    std::string text; ///< head and header
    std::span<const std::byte> body;
    std::shared_ptr<const void> owner;
  };
  std::deque<Frame> frames_;
  /// Bytes of the first frame that are sent.
  size_t gone_ = 0;
};

} // namespace trireme::rpc::tcp
