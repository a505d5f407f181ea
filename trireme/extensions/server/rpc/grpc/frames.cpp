#include <trireme/extensions/server/rpc/grpc/frames.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace trireme::rpc::grpc {
namespace {

// Protobuf's wire types (https://protobuf.dev/programming-guides/encoding/).
enum Wire : uint64_t { kVarint = 0, kEight = 1, kLength = 2, kGroup = 3, kGroupEnd = 4, kFour = 5 };

constexpr uint64_t tag(uint64_t field, Wire wire) {
  return field << 3 | wire;
}

void put_varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    to.push_back(static_cast<char>(value | 0x80));
  }
  to.push_back(static_cast<char>(value));
}

/// Leaves out zeros, as proto3 does.
void put_number(std::string& to, uint64_t field, uint64_t value) {
  if (value != 0) {
    put_varint(to, tag(field, kVarint));
    put_varint(to, value);
  }
}

} // namespace

std::string encode(const Frame& frame) {
  std::string bytes;
  bytes.reserve(frame.header.size() + 64);
  put_number(bytes, 1, frame.id);
  if (!frame.header.empty()) {
    put_varint(bytes, tag(2, kLength));
    put_varint(bytes, frame.header.size());
    bytes += frame.header;
  }
  put_number(bytes, 3, frame.body_bytes);
  put_number(bytes, 4, frame.room_bytes);
  if (frame.part_bytes != 0) {
    put_varint(bytes, tag(5, kLength));
    put_varint(bytes, frame.part_bytes);
  }
  return bytes;
}

FrameReader::FrameReader(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
  for (const auto& piece : pieces_) {
    bytes_ += piece.size();
  }
  while (left() > 0) {
    const uint64_t next = varint();
    switch (next) {
      case tag(1, kVarint):
        frame_.id = varint();
        break;
      case tag(2, kLength): {
        const uint64_t bytes = length();
        frame_.header.resize(bytes);
        copy(at_, bytes, reinterpret_cast<std::byte*>(frame_.header.data()));
        skip(bytes);
        break;
      }
      case tag(3, kVarint):
        frame_.body_bytes = varint();
        break;
      case tag(4, kVarint):
        frame_.room_bytes = varint();
        break;
      case tag(5, kLength):
        frame_.part_bytes = length();
        part_at_ = at_;
        skip(frame_.part_bytes);
        break;
      default:
        skip_field(next, 0);
    }
  }
}

uint8_t FrameReader::byte() {
  while (piece_ < pieces_.size() && in_piece_ == pieces_[piece_].size()) {
    ++piece_;
    in_piece_ = 0;
  }
  if (piece_ == pieces_.size()) {
    throw BadFrame("a frame ends within a field");
  }
  ++at_;
  return static_cast<uint8_t>(pieces_[piece_][in_piece_++]);
}

uint64_t FrameReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t next = byte();
    value |= static_cast<uint64_t>(next & 0x7f) << shift;
    if ((next & 0x80) == 0) {
      return value;
    }
  }
  throw BadFrame("a frame has a number of more than 64 bits");
}

uint64_t FrameReader::length() {
  const uint64_t bytes = varint();
  if (bytes > left()) {
    throw BadFrame("a frame ends within a field");
  }
  return bytes;
}

void FrameReader::skip(uint64_t bytes) {
  if (bytes > left()) {
    throw BadFrame("a frame ends within a field");
  }
  at_ += bytes;
  while (bytes > 0) {
    const size_t step = std::min<size_t>(bytes, pieces_[piece_].size() - in_piece_);
    in_piece_ += step;
    bytes -= step;
    if (in_piece_ == pieces_[piece_].size()) {
      ++piece_;
      in_piece_ = 0;
    }
  }
}

void FrameReader::skip_field(uint64_t next, int depth) {
  constexpr int kDeepest = 32;
  if (next >> 3 == 0 || next >> 32 != 0 || depth > kDeepest) {
    throw BadFrame("a frame has a field that protobuf does not allow");
  }
  switch (next & 7) {
    case kVarint:
      varint();
      return;
    case kEight:
      skip(8);
      return;
    case kLength:
      skip(length());
      return;
    case kFour:
      skip(4);
      return;
    case kGroup:
      for (uint64_t inner = varint(); inner != tag(next >> 3, kGroupEnd); inner = varint()) {
        skip_field(inner, depth + 1);
      }
      return;
    default:
      throw BadFrame("a frame has a field of a kind that protobuf does not know");
  }
}

void FrameReader::copy(size_t from, size_t bytes, std::byte* to) const {
  for (const auto& piece : pieces_) {
    if (bytes == 0) {
      return;
    }
    if (from >= piece.size()) {
      from -= piece.size();
      continue;
    }
    const size_t step = std::min(bytes, piece.size() - from);
    std::memcpy(to, piece.data() + from, step);
    to += step;
    bytes -= step;
    from = 0;
  }
}

void FrameReader::copy_part(std::byte* to) const {
  copy(part_at_, frame_.part_bytes, to);
}

std::string encode_bytes(std::string_view bytes) {
  std::string message;
  put_varint(message, tag(1, kLength));
  put_varint(message, bytes.size());
  message += bytes;
  return message;
}

std::string decode_bytes(std::string_view message) {
  // Field 1 of type bytes is encoded like a header, except for its number.
  constexpr auto kFieldOne = static_cast<char>(tag(1, kLength));
  if (message.size() < 2 || message[0] != kFieldOne || static_cast<unsigned char>(message[1]) >= 0x80 ||
      static_cast<size_t>(message[1]) != message.size() - 2) {
    throw BadFrame("the reply to Challenge is not a ChallengeReply");
  }
  return std::string(message.substr(2));
}

} // namespace trireme::rpc::grpc
