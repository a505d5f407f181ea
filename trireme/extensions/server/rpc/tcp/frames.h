#pragma once

#include <trireme/base/error.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

// Frames of "tcp://", which client and server send after both have proved that they belong to the job
// (store/handshake.h). A frame has a head of kHeadBytes, the header (text), and the body, unless that is in shared
// memory. Numbers are little-endian.
namespace trireme::rpc::tcp {

inline constexpr size_t kHeadBytes = 56;
/// Longest body or room of a request, in bytes.
inline constexpr uint64_t kLongestBody = uint64_t{1} << 38;
/// Replaces an offset in the client's arena: the body is part of the stream, or the room is not shared.
inline constexpr uint64_t kInStream = ~uint64_t{0};

/// Request 0 is a client's first: its header offers the client's memory, and the response's header tells whether the
/// server can access it.
struct Head {
  enum class Kind : uint8_t { request = 1, reply = 2 };
  Kind kind = Kind::request;
  /// The client's number of the request.
  uint64_t id = 0;
  uint64_t header_bytes = 0;
  uint64_t body_bytes = 0;
  /// Offset of the body in the client's arena. In a response: 0 if the body was already written to the client's room.
  uint64_t body_at = kInStream;
  uint64_t room_bytes = 0;
  uint64_t room_at = kInStream;

  /// Bytes of the body that follow the header in the stream.
  uint64_t streamed() const { return body_at == kInStream ? body_bytes : 0; }
  bool operator==(const Head&) const = default;
};

/// The received bytes are not a frame. The connection must be closed.
class BadFrame : public PeerError {
 public:
  explicit BadFrame(const std::string& happened) : PeerError("rpc", happened), happened(happened) {}
  std::string happened;
};

using HeadBytes = std::array<std::byte, kHeadBytes>;

HeadBytes pack(const Head& head);
/// Reads a head of `kind`. `shared_bytes`: size of the arena that offsets refer to, 0 without one. Errors: BadFrame for
/// invalid bytes, lengths beyond the limits, and offsets outside the arena.
Head unpack(std::span<const std::byte, kHeadBytes> bytes, Head::Kind kind, uint64_t shared_bytes);

} // namespace trireme::rpc::tcp
