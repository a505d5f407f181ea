#pragma once

#include <trireme/launch/descriptor.h>
#include <trireme/launch/lines.h>
#include <trireme/launch/screen.h>

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

namespace trireme::launch {

/// How the output of a rank is shown at the launcher.
enum class Shown { not_at_all, as_it_is, with_prefix };

/// Writes one rank's stdout and stderr to its log and to the screen, and keeps the last lines.
class RankOutput {
 public:
  /// Opens log_dir/rank<r>.log for appending; `heading` separates this start from what is already in it.
  /// Errors: InputError when the log cannot be opened.
  /// `kind`: for "worker", worker<r>.log and "[worker r]".
  RankOutput(int rank, const std::filesystem::path& log_dir, const std::string& heading, Shown shown, Screen& screen,
             const std::string& kind = "rank");

  /// False while the screen has unwritten output of this stream (0: stdout, 1: stderr).
  bool wants(int stream) const;
  void take(int stream, std::string_view bytes);
  /// Call it after the rank ended: bytes after the last line end become a line.
  void end_lines();
  /// Call it after the last output.
  void finish();

  const LastLines& last_lines() const { return last_lines_; }
  const std::filesystem::path& log() const { return log_path_; }

 private:
  struct Stream {
    LineSplitter splitter;
    Outlet* outlet = nullptr;
  };
  void take_line(Stream& stream, std::string_view line);
  void write_log(std::string_view bytes);

  std::string name_;
  Shown shown_;
  Screen& screen_;
  std::filesystem::path log_path_;
  Descriptor log_;
  std::array<Stream, 2> streams_;
  LastLines last_lines_;
};

} // namespace trireme::launch
