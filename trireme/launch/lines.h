#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace trireme::launch {

/// Cuts a stream of bytes into lines (without their end). A line longer than 64 KiB is cut there.
class LineSplitter {
 public:
  using Sink = std::function<void(std::string_view line)>;

  void add(std::string_view bytes, const Sink& sink);
  /// Passes on the bytes after the last line end, if any.
  void finish(const Sink& sink);

 private:
  std::string partial_;
};

/// The part of a line redrawn with carriage returns that a terminal shows: the last drawing.
std::string_view last_drawing(std::string_view line);

/// Keeps the last 20 lines, at most 2000 bytes of each. A stack of libtorch's ("frame #0: ...", "frame #1: ...") counts
/// as one line: its first frame, and how many follow.
class LastLines {
 public:
  static constexpr size_t kLines = 20;
  static constexpr size_t kBytes = 2000;

  void add(std::string_view line);
  const std::deque<std::string>& lines() const { return lines_; }
  /// The last line that is not empty, or "".
  std::string last() const;

 private:
  std::deque<std::string> lines_;
  /// Frames of the stack that ends the last line, and that line without the added count.
  size_t frames_ = 0;
  std::string first_frame_;
};

} // namespace trireme::launch
