#include <trireme/launch/messages.h>

#include <trireme/base/error.h>

#include <cstdint>
#include <limits>

namespace trireme::launch {
namespace {

constexpr size_t kLongestMessage = 64 << 20;

} // namespace

std::string to_text(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xC0 | (byte >> 6));
      text += static_cast<char>(0x80 | (byte & 0x3F));
    }
  }
  return text;
}

std::string to_bytes(const std::string& text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0xC0 && i + 1 < text.size()) {
      ++i;
      bytes += static_cast<char>(((byte & 0x03) << 6) | (static_cast<unsigned char>(text[i]) & 0x3F));
    } else {
      bytes += text[i];
    }
  }
  return bytes;
}

std::string pack(const Message& message) {
  return message.dump() + "\n";
}

Message pack_variables(const Variables& variables) {
  Message packed = Message::array();
  for (const auto& [name, value] : variables) {
    packed.push_back({to_text(name), to_text(value)});
  }
  return packed;
}

Variables unpack_variables(const Message& message) {
  Variables variables;
  for (const Message& one : message) {
    variables.emplace_back(to_bytes(one.at(0).get<std::string>()), to_bytes(one.at(1).get<std::string>()));
  }
  return variables;
}

Message pack_end(int rank, const RankEnd& end) {
  return {{"is", "ended"},
          {"rank", rank},
          {"status", end.wait_status},
          {"pid", end.pid},
          {"peak_rss_bytes", end.peak_rss_bytes},
          {"out_of_memory", static_cast<int>(end.out_of_memory)}};
}

// nlohmann's conversion would accept any number, such as 1e300.
int whole(const Message& message, const char* key) {
  const int64_t number = message.at(key).get_ref<const Message::number_integer_t&>();
  if (number < std::numeric_limits<int>::min() || number > std::numeric_limits<int>::max()) {
    throw Error("launch", concat("a message has \"", key, "\": ", number, ", out of range for a rank, node or port"),
                "Use the same version of Trireme on all hosts.");
  }
  return static_cast<int>(number);
}

RankEnd unpack_end(const Message& message) {
  RankEnd end;
  end.wait_status = whole(message, "status");
  end.pid = whole(message, "pid");
  end.peak_rss_bytes = message.at("peak_rss_bytes");
  end.out_of_memory = static_cast<OutOfMemory>(whole(message, "out_of_memory"));
  return end;
}

Message pack_share(const Share& share) {
  Message command = Message::array();
  for (const std::string& word : share.command) {
    command.push_back(to_text(word));
  }
  return {{"first_rank", share.first_rank},
          {"local_ranks", share.local_ranks},
          {"ranks", share.ranks},
          {"node", share.node},
          {"nodes", share.nodes},
          {"restarts", share.restarts},
          {"max_restarts", share.max_restarts},
          {"address", to_text(share.address)},
          {"port", share.ports.store},
          {"program_port", share.ports.program},
          {"terminal_columns", share.terminal_columns},
          {"command", command},
          {"variables", pack_variables(share.variables)},
          {"neighbours", share.neighbours},
          {"keeps_socket", share.keeps_socket}};
}

Share unpack_share(const Message& message) {
  Share share;
  share.first_rank = whole(message, "first_rank");
  share.local_ranks = whole(message, "local_ranks");
  share.ranks = whole(message, "ranks");
  share.node = whole(message, "node");
  share.nodes = whole(message, "nodes");
  share.restarts = whole(message, "restarts");
  share.max_restarts = whole(message, "max_restarts");
  share.address = to_bytes(message.at("address"));
  share.ports = {whole(message, "port"), whole(message, "program_port")};
  share.terminal_columns = whole(message, "terminal_columns");
  for (const Message& word : message.at("command")) {
    share.command.push_back(to_bytes(word));
  }
  share.variables = unpack_variables(message.at("variables"));
  share.neighbours = whole(message, "neighbours");
  share.keeps_socket = message.at("keeps_socket").get<bool>();
  return share;
}

void MessageReader::add(std::string_view bytes) {
  arrived_.erase(0, read_);
  read_ = 0;
  arrived_.append(bytes);
  if (arrived_.size() > kLongestMessage) {
    throw Error("launch", "received a line of more than 64 MiB, which is no message");
  }
}

std::optional<MessageReader::Line> MessageReader::next() {
  const size_t end = arrived_.find('\n', read_);
  if (end == std::string::npos) {
    return std::nullopt;
  }
  Line line;
  line.text = arrived_.substr(read_, end - read_);
  read_ = end + 1;
  Message message = Message::parse(line.text, nullptr, false);
  if (message.is_object()) {
    line.message = std::move(message);
  }
  return line;
}

} // namespace trireme::launch
