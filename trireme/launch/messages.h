#pragma once

#include <trireme/launch/place.h>

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>

// Messages of launcher, agent and guardian: JSON objects, one per line. Orders have "do", events have "is".
namespace trireme::launch {

using Message = nlohmann::json;

/// Increased by every change that an agent of another build would misread.
inline constexpr int kProtocol = 5;

/// Converts any bytes to JSON text and back: each byte becomes the character with that number.
std::string to_text(std::string_view bytes);
std::string to_bytes(const std::string& text);

/// The message as a line, with its line end.
std::string pack(const Message& message);

Message pack_share(const Share& share);
Message pack_variables(const Variables& variables);
/// The event "ended".
Message pack_end(int rank, const RankEnd& end);
/// Read a number or another member of a message. Errors: nlohmann::json::exception for
/// a missing member or one of another type, Error for a number that does not fit into
/// int.
int whole(const Message& message, const char* key);
Share unpack_share(const Message& message);
Variables unpack_variables(const Message& message);
RankEnd unpack_end(const Message& message);

/// Splits the input into messages. Other lines, such as a greeting of the remote shell, are returned unchanged.
class MessageReader {
 public:
  struct Line {
    std::optional<Message> message;
    std::string text;
  };
  /// Errors: Error when a line grows beyond 64 MiB.
  void add(std::string_view bytes);
  std::optional<Line> next();

 private:
  std::string arrived_;
  size_t read_ = 0;
};

} // namespace trireme::launch
