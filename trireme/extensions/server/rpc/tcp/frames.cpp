#include <trireme/extensions/server/rpc/tcp/frames.h>

#include <trireme/extensions/server/rpc/rpc.h>

#include <cstring>

namespace trireme::rpc::tcp {
namespace {

// The last byte is the version.
constexpr std::array<unsigned char, 4> kMark = {'T', 'R', 'Q', 1};

void put(HeadBytes& bytes, size_t at, uint64_t number) {
  for (size_t i = 0; i < 8; ++i) {
    bytes[at + i] = static_cast<std::byte>(number >> (8 * i));
  }
}

uint64_t take(std::span<const std::byte, kHeadBytes> bytes, size_t at) {
  uint64_t number = 0;
  for (size_t i = 0; i < 8; ++i) {
    number |= std::to_integer<uint64_t>(bytes[at + i]) << (8 * i);
  }
  return number;
}

void check_place(const char* what, uint64_t at, uint64_t bytes, uint64_t shared_bytes) {
  if (at != kInStream && (bytes > shared_bytes || at > shared_bytes - bytes)) {
    throw BadFrame(concat("a frame's ", what, " has ", bytes, " bytes at ", at, " of shared memory, which has only ",
                          shared_bytes));
  }
}

} // namespace

HeadBytes pack(const Head& head) {
  HeadBytes bytes{};
  std::memcpy(bytes.data(), kMark.data(), kMark.size());
  bytes[kMark.size()] = static_cast<std::byte>(head.kind);
  put(bytes, 8, head.id);
  put(bytes, 16, head.header_bytes);
  put(bytes, 24, head.body_bytes);
  put(bytes, 32, head.body_at);
  put(bytes, 40, head.room_bytes);
  put(bytes, 48, head.room_at);
  return bytes;
}

Head unpack(std::span<const std::byte, kHeadBytes> bytes, Head::Kind kind, uint64_t shared_bytes) {
  if (std::memcmp(bytes.data(), kMark.data(), kMark.size()) != 0 ||
      bytes[kMark.size()] != static_cast<std::byte>(kind)) {
    throw BadFrame("the received bytes are not a frame");
  }
  Head head;
  head.kind = kind;
  head.id = take(bytes, 8);
  head.header_bytes = take(bytes, 16);
  head.body_bytes = take(bytes, 24);
  head.body_at = take(bytes, 32);
  head.room_bytes = take(bytes, 40);
  head.room_at = take(bytes, 48);
  if (head.header_bytes > kLargestHeader || head.body_bytes > kLongestBody || head.room_bytes > kLongestBody) {
    throw BadFrame(concat("a frame announces a header of ", head.header_bytes, " bytes, a body of ", head.body_bytes,
                          " and a room of ", head.room_bytes, ", which is too long"));
  }
  if (kind == Head::Kind::reply) {
    if (head.room_bytes != 0 || head.room_at != kInStream || (head.body_at != kInStream && head.body_at != 0)) {
      throw BadFrame("a response has a room");
    }
    return head;
  }
  check_place("body", head.body_at, head.body_bytes, shared_bytes);
  check_place("room", head.room_at, head.room_bytes, shared_bytes);
  return head;
}

} // namespace trireme::rpc::tcp
