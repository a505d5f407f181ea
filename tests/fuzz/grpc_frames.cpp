// What a client that knows the secret may send to a parameter server over gRPC (and a server to a client).
#include "fuzz.h"

#include <trireme/extensions/server/rpc/grpc/frames.h>

#include <algorithm>
#include <vector>

using namespace trireme;
using namespace trireme::fuzz;
using rpc::grpc::BadFrame;
using rpc::grpc::Frame;
using rpc::grpc::FrameReader;

namespace {

struct Parsed {
  bool frame = false;
  Frame head;
  std::vector<std::byte> part;
  bool operator==(const Parsed& other) const {
    return frame == other.frame && head.id == other.head.id && head.header == other.head.header &&
           head.body_bytes == other.head.body_bytes && head.room_bytes == other.head.room_bytes && part == other.part;
  }
};

Parsed parse(std::vector<FrameReader::Piece> pieces) {
  try {
    const FrameReader reader(std::move(pieces));
    Parsed parsed{true, reader.frame(), std::vector<std::byte>(reader.frame().part_bytes)};
    reader.copy_part(parsed.part.data());
    return parsed;
  } catch (const BadFrame&) {
    return {};
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const size_t step = size == 0 ? 1 : data[0] % 16; // 0: pieces without bytes among those with
  const FrameReader::Piece bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto frame = size == 0 ? bytes : bytes.subspan(1);
  const Parsed whole = parse({frame});
  std::vector<FrameReader::Piece> pieces;
  for (size_t at = 0; at < frame.size(); at += std::max<size_t>(step, 1)) {
    pieces.push_back(frame.subspan(at, std::min(std::max<size_t>(step, 1), frame.size() - at)));
    if (step == 0) {
      pieces.push_back(frame.subspan(at, 0));
    }
  }
  require(parse(pieces) == whole, "a frame is the same in whatever pieces it comes");
  if (whole.frame) {
    std::string again = encode(whole.head);
    again.append(reinterpret_cast<const char*>(whole.part.data()), whole.part.size());
    require(parse({std::as_bytes(std::span(again))}) == whole, "a frame that is written again is the same");
  }
  try {
    const std::string_view text = text_of(data, size);
    const std::string field = rpc::grpc::decode_bytes(text);
    require(rpc::grpc::encode_bytes(field) == text, "a field that is written again is the same");
  } catch (const BadFrame&) {
  }
  return 0;
}
