#pragma once

#include <trireme/extensions/server/rpc/tcp/frames.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme::rpc::tcp {

/// Where the parts of the next frame go.
class FrameTaker {
 public:
  virtual ~FrameTaker() = default;
  struct Place {
    /// As long as the head says, and likewise the body: as many bytes as follow in the stream. They stay in place until
    /// finished().
    std::span<char> header;
    std::span<std::byte> body;
  };
  /// Errors: BadFrame.
  virtual Place begin(std::span<const std::byte, kHeadBytes> head) = 0;
  /// The frame is complete. Errors: BadFrame.
  virtual void finished() = 0;
};

/// Cuts what a non-blocking socket brings into frames, whatever the pieces in which it comes. Bodies are read into
/// their places; only what arrives together with a head is copied.
class FrameReader {
 public:
  FrameReader();
  /// Reads what is there, at most about `budget` bytes. Returns false when the other end has closed or broken the
  /// connection. Errors: the taker's.
  bool read_some(int socket, FrameTaker& taker, size_t budget);

 private:
  void consume(FrameTaker& taker);
  bool filled() const {
    return in_frame_ && header_.empty() && body_.empty();
  }

  std::vector<std::byte> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool in_frame_ = false;
  /// What is missing of them.
  std::span<char> header_;
  std::span<std::byte> body_;
};

/// Frames on their way out of a non-blocking socket.
class FrameWriter {
 public:
  /// `body` stays in place until the frame has gone or the writer is destroyed; `owner` lives as long.
  void add(const Head& head, std::string_view header, std::span<const std::byte> body,
           std::shared_ptr<const void> owner = nullptr);
  /// Sends what fits. Returns false when the connection is broken.
  bool send_some(int socket);
  bool empty() const {
    return frames_.empty();
  }

 private:
  struct Frame {
    std::string text; ///< head and header
    std::span<const std::byte> body;
    std::shared_ptr<const void> owner;
  };
  std::deque<Frame> frames_;
  /// Bytes of the first frame that have gone.
  size_t gone_ = 0;
};

} // namespace trireme::rpc::tcp
