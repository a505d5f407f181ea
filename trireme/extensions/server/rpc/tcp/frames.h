#pragma once

#include <trireme/base/error.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

// What client and server of "tcp://" send each other once both have proved that they belong to the job
// (store/handshake.h): frames. A frame is a head of kHeadBytes, the header (text), and the body, unless it lies in
// memory that both see. Numbers are little-endian.
namespace trireme::rpc::tcp {

inline constexpr size_t kHeadBytes = 56;
/// The longest body or room of a request.
inline constexpr uint64_t kLongestBody = uint64_t{1} << 38;
/// In place of an offset into the client's arena: the body is part of the stream, or the room is not shared.
inline constexpr uint64_t kInStream = ~uint64_t{0};

/// The request with number 0 is a client's first: its header offers the client's memory, the reply's says whether the
/// server sees it.
struct Head {
  enum class Kind : uint8_t { request = 1, reply = 2 };
  Kind kind = Kind::request;
  /// The client's number of the request.
  uint64_t id = 0;
  uint64_t header_bytes = 0;
  uint64_t body_bytes = 0;
  /// Offset of the body in the client's arena. Of a reply: 0 where the body was written into the client's room already.
  uint64_t body_at = kInStream;
  uint64_t room_bytes = 0;
  uint64_t room_at = kInStream;

  /// Bytes of the body that follow the header in the stream.
  uint64_t streamed() const {
    return body_at == kInStream ? body_bytes : 0;
  }
  bool operator==(const Head&) const = default;
};

/// The received bytes are no frame. The connection must be closed.
class BadFrame : public PeerError {
 public:
  explicit BadFrame(const std::string& happened) : PeerError("rpc", happened), happened(happened) {}
  std::string happened;
};

using HeadBytes = std::array<std::byte, kHeadBytes>;

HeadBytes pack(const Head& head);
/// Reads a head of `kind`. `shared_bytes`: the size of the arena that offsets refer to, 0 without one.
/// Errors: BadFrame for anything that is none, that is longer than the limits, or whose offsets leave the arena.
Head unpack(std::span<const std::byte, kHeadBytes> bytes, Head::Kind kind, uint64_t shared_bytes);

} // namespace trireme::rpc::tcp
