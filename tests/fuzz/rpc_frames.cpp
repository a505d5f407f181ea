// What a member of a job may send to a server, and a server to its client: frames, in pieces of any length.
#include "fuzz.h"

#include <trireme/extensions/server/rpc/tcp/streams.h>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

using namespace trireme;
using namespace trireme::fuzz;

namespace {

constexpr size_t kMemory = 1 << 16;

/// Keeps all frames as text.
struct Keeper : rpc::tcp::FrameTaker {
  explicit Keeper(rpc::tcp::Head::Kind kind) : kind(kind) {}
  Place begin(std::span<const std::byte, rpc::tcp::kHeadBytes> bytes) override {
    const rpc::tcp::Head head = rpc::tcp::unpack(bytes, kind, kMemory);
    require(rpc::tcp::unpack(rpc::tcp::pack(head), kind, kMemory) == head, "a head that was read is written the same");
    require(head.body_at == rpc::tcp::kInStream || head.kind == rpc::tcp::Head::Kind::reply ||
                head.body_at + head.body_bytes <= kMemory,
            "shared bodies lie in the memory");
    require(head.room_at == rpc::tcp::kInStream || head.room_at + head.room_bytes <= kMemory,
            "shared rooms lie in the memory");
    if (head.header_bytes > kMemory || head.streamed() > kMemory) {
      throw rpc::tcp::BadFrame("too long for this test");
    }
    header.assign(head.header_bytes, '\0');
    body.assign(head.streamed(), std::byte{});
    return {header, body};
  }
  void finished() override {
    frames += header + "|" + std::string(reinterpret_cast<const char*>(body.data()), body.size()) + "\n";
  }

  rpc::tcp::Head::Kind kind;
  std::string header;
  std::vector<std::byte> body;
  std::string frames;
};

std::string frames_of(std::string_view bytes, size_t piece, rpc::tcp::Head::Kind kind) {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a pair of sockets");
  rpc::tcp::FrameReader reader;
  Keeper keeper(kind);
  try {
    for (size_t at = 0; at < bytes.size(); at += piece) {
      const std::string_view part = bytes.substr(at, piece);
      require(::send(ends[0], part.data(), part.size(), MSG_DONTWAIT) == static_cast<ssize_t>(part.size()),
              "a socket takes a piece");
      require(reader.read_some(ends[1], keeper, kMemory), "the connection is open");
      require(reader.read_some(ends[1], keeper, kMemory), "and has nothing more");
    }
  } catch (const rpc::tcp::BadFrame&) {
    keeper.frames += "bad";
  }
  ::close(ends[0]);
  ::close(ends[1]);
  return keeper.frames;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes = text_of(data, std::min<size_t>(size, kMemory));
  for (const auto kind : {rpc::tcp::Head::Kind::request, rpc::tcp::Head::Kind::reply}) {
    const std::string whole = frames_of(bytes, kMemory, kind);
    for (const size_t piece : {size_t{7}, size_t{56}, size_t{61}}) {
      require(frames_of(bytes, piece, kind) == whole, "frames do not depend on the pieces in which they come");
    }
  }
  return 0;
}
