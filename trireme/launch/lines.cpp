#include <trireme/launch/lines.h>

#include <trireme/base/error.h>

#include <algorithm>

namespace trireme::launch {
namespace {

constexpr size_t kLongestLine = 64 * 1024;
// "[rank0]: " may precede a frame.
constexpr size_t kIndent = 24;

} // namespace

void LineSplitter::add(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    const size_t room = kLongestLine - partial_.size();
    const size_t end = bytes.substr(0, room + 1).find('\n');
    const size_t taken = end == std::string_view::npos ? std::min(room, bytes.size()) : end;
    partial_.append(bytes.substr(0, taken));
    bytes.remove_prefix(end == std::string_view::npos ? taken : end + 1);
    if (end != std::string_view::npos || partial_.size() == kLongestLine) {
      sink(partial_);
      partial_.clear();
    }
  }
}

void LineSplitter::finish(const Sink& sink) {
  if (!partial_.empty()) {
    sink(partial_);
    partial_.clear();
  }
}

std::string_view last_drawing(std::string_view line) {
  while (!line.empty() && line.back() == '\r') {
    line.remove_suffix(1);
  }
  const size_t start = line.rfind('\r');
  return start == std::string_view::npos ? line : line.substr(start + 1);
}

void LastLines::add(std::string_view line) {
  const std::string_view shown = last_drawing(line);
  frames_ = shown.substr(0, kIndent).find("frame #") != std::string_view::npos ? frames_ + 1 : 0;
  if (frames_ > 1) {
    lines_.back() = concat(first_frame_, " (and ", frames_ - 1, frames_ == 2 ? " more frame)" : " more frames)");
    return;
  }
  lines_.emplace_back(shown.substr(0, kBytes));
  if (shown.size() > kBytes) {
    lines_.back() += "...";
  }
  if (lines_.size() > kLines) {
    lines_.pop_front();
  }
  first_frame_ = frames_ == 1 ? lines_.back() : "";
}

std::string LastLines::last() const {
  const auto found = std::find_if(lines_.rbegin(), lines_.rend(), [](const std::string& line) {
    return line.find_first_not_of(" \t") != std::string::npos;
  });
  return found == lines_.rend() ? "" : *found;
}

} // namespace trireme::launch
