#include <trireme/store/messages.h>

namespace trireme::store {
namespace {

void put(std::string& bytes, uint64_t number, size_t width) {
  for (size_t place = 0; place < width; ++place) {
    bytes += static_cast<char>(number >> (8 * place));
  }
}

uint64_t get(std::string_view bytes) {
  uint64_t number = 0;
  for (size_t place = bytes.size(); place-- > 0;) {
    number = number << 8 | static_cast<unsigned char>(bytes[place]);
  }
  return number;
}

} // namespace

MessageWriter::MessageWriter(Op op) : bytes_(kLengthBytes, '\0') {
  bytes_ += static_cast<char>(op);
}

MessageWriter::MessageWriter(Status status) : bytes_(kLengthBytes, '\0') {
  bytes_ += static_cast<char>(status);
}

MessageWriter& MessageWriter::add(std::string_view text) {
  put(bytes_, text.size(), 4);
  bytes_ += text;
  return *this;
}

MessageWriter& MessageWriter::add(const std::vector<std::string>& texts) {
  put(bytes_, texts.size(), 4);
  for (const auto& text : texts) {
    add(std::string_view(text));
  }
  return *this;
}

MessageWriter& MessageWriter::add(int64_t number) {
  put(bytes_, static_cast<uint64_t>(number), 8);
  return *this;
}

MessageWriter& MessageWriter::add(bool truth) {
  bytes_ += truth ? '\1' : '\0';
  return *this;
}

std::string MessageWriter::finish() {
  const size_t length = bytes_.size() - kLengthBytes;
  if (length > kLongestMessage) {
    throw BadMessage(concat("a message of ", length, " bytes is longer than ", kLongestMessage));
  }
  std::string start;
  put(start, length, kLengthBytes);
  bytes_.replace(0, kLengthBytes, start);
  return std::move(bytes_);
}

std::string_view MessageReader::take(size_t bytes) {
  if (bytes > left_.size()) {
    throw BadMessage("the message ends too early");
  }
  const auto taken = left_.substr(0, bytes);
  left_.remove_prefix(bytes);
  return taken;
}

uint8_t MessageReader::byte() {
  return static_cast<uint8_t>(get(take(1)));
}

std::string_view MessageReader::text() {
  return take(get(take(4)));
}

std::vector<std::string> MessageReader::texts() {
  const uint64_t count = get(take(4));
  if (count > left_.size() / 4) {
    throw BadMessage("the message announces more strings than it can hold");
  }
  std::vector<std::string> texts;
  texts.reserve(count);
  for (uint64_t place = 0; place < count; ++place) {
    texts.emplace_back(text());
  }
  return texts;
}

int64_t MessageReader::number() {
  return static_cast<int64_t>(get(take(8)));
}

bool MessageReader::truth() {
  return byte() != 0;
}

void MessageReader::end() const {
  if (!left_.empty()) {
    throw BadMessage("the message has extra bytes at its end");
  }
}

uint32_t message_length(std::string_view bytes) {
  const auto length = static_cast<uint32_t>(get(bytes.substr(0, kLengthBytes)));
  if (length == 0 || length > kLongestMessage) {
    throw BadMessage(concat("a message of ", length, " bytes"));
  }
  return length;
}

} // namespace trireme::store
