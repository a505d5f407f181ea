#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::rpc::grpc {

/// Longest part of a body in a frame that is sent. By default, other implementations refuse messages of more than 4
/// MiB.
inline constexpr size_t kPartBytes = size_t{1} << 20;
/// Longest frame that is accepted.
inline constexpr size_t kLongestFrame = (size_t{64} << 20) + 4096;

/// The message Frame of parameter_server.proto, without its part of the body. Protobuf's encoding is written and read
/// by hand: there are five fields, and the body is copied once, from the network buffer to its destination.
struct Frame {
  uint64_t id = 0;
  std::string header;
  uint64_t body_bytes = 0;
  uint64_t room_bytes = 0;
  /// Bytes of the body in this frame.
  size_t part_bytes = 0;
};

/// The received bytes are not a valid Frame.
class BadFrame : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Encodes the frame up to its part of the body, which follows unchanged.
std::string encode(const Frame& frame);

/// Reads a frame from several pieces of memory. Skips unknown fields.
class FrameReader {
 public:
  using Piece = std::span<const std::byte>;
  /// Errors: BadFrame.
  explicit FrameReader(std::vector<Piece> pieces);
  const Frame& frame() const { return frame_; }
  /// Copies frame().part_bytes bytes.
  void copy_part(std::byte* to) const;

 private:
  size_t left() const { return bytes_ - at_; }
  uint8_t byte();
  uint64_t varint();
  uint64_t length();
  void skip(uint64_t bytes);
  void copy(size_t from, size_t bytes, std::byte* to) const;
  void skip_field(uint64_t tag, int depth);

  std::vector<Piece> pieces_;
  size_t bytes_ = 0;
  /// Position of the reader: in the frame, and in which piece.
  size_t at_ = 0;
  size_t piece_ = 0;
  size_t in_piece_ = 0;
  Frame frame_;
  size_t part_at_ = 0;
};

/// Encode and decode a message with one field 1 of type bytes: ChallengeReply. Errors of decode_bytes(): BadFrame.
std::string encode_bytes(std::string_view bytes);
std::string decode_bytes(std::string_view message);

} // namespace trireme::rpc::grpc
