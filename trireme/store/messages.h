#pragma once

#include <trireme/base/error.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::store {

/// A message is a length (4 bytes, little-endian, 1 to kLongestMessage) followed by that many bytes. A request begins
/// with its Op, its reply with its Status; strings inside are preceded by their length (4 bytes).
inline constexpr uint32_t kLongestMessage = 16u << 20;
inline constexpr size_t kLengthBytes = 4;

enum class Op : uint8_t { set = 1, find, add, wait, compare_set, remove, check, count, append, last_will, take_number };
enum class Status : uint8_t { done = 0, refused = 1 };

/// The received bytes are not a message. The connection must be closed.
class BadMessage : public Error {
 public:
  explicit BadMessage(const std::string& happened) : Error("store", happened + "."), happened(happened) {}
  std::string happened;
};

/// Builds a message.
class MessageWriter {
 public:
  explicit MessageWriter(Op op);
  explicit MessageWriter(Status status);
  MessageWriter& add(std::string_view text);
  MessageWriter& add(const std::vector<std::string>& texts);
  MessageWriter& add(int64_t number);
  MessageWriter& add(bool truth);
  /// Returns the message with its length in front. Errors: BadMessage if it is longer than kLongestMessage.
  std::string finish();

 private:
  std::string bytes_;
};

/// Reads the parts of a message (without its length) in order. Errors: BadMessage if a part is missing.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : left_(bytes) {}
  uint8_t byte();
  std::string_view text();
  std::vector<std::string> texts();
  int64_t number();
  bool truth();
  /// Throws BadMessage if bytes are left.
  void end() const;

 private:
  std::string_view take(size_t bytes);
  std::string_view left_;
};

/// The length at the start of at least four bytes. Errors: BadMessage if it is out of bounds.
uint32_t message_length(std::string_view bytes);

} // namespace trireme::store
