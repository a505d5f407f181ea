#pragma once

#include <trireme/launch/descriptor.h>
#include <trireme/launch/lines.h>
#include <trireme/launch/screen.h>

#include <poll.h>

#include <array>
#include <filesystem>
#include <vector>

namespace trireme::launch {

/// How the output of a rank reaches the person at the launcher.
enum class Shown { not_at_all, as_it_is, with_prefix };

/// Takes what one rank writes to stdout and stderr: into its log, onto the screen, and the last lines kept.
class RankOutput {
 public:
  /// Opens log_dir/rank<r>.log for appending; `heading` separates this start from what is already in it.
  /// Errors: InputError when the log cannot be opened.
  RankOutput(int rank, const std::filesystem::path& log_dir, const std::string& heading, Shown shown, Screen& screen);

  /// Ends for the rank to write to; close_write_ends() once it has them.
  int stdout_fd() const {
    return streams_[0].pipe.write.get();
  }
  int stderr_fd() const {
    return streams_[1].pipe.write.get();
  }
  void close_write_ends();

  /// Appends what should be polled now: nothing while the screen is behind.
  void add_to(std::vector<pollfd>& polled) const;
  /// Reads what `fd` has, when it is one of this rank's.
  void read_from(int fd);
  /// Reads all that is left without waiting for writers that still hold the pipes, and closes the log.
  void finish();
  /// Reads all that is there now.
  void drain();

  const LastLines& last_lines() const {
    return last_lines_;
  }
  const std::filesystem::path& log() const {
    return log_path_;
  }

 private:
  struct Stream {
    Pipe pipe;
    LineSplitter splitter;
    Outlet* outlet = nullptr;
  };
  bool read_once(Stream& stream);
  void take(Stream& stream, std::string_view bytes);
  void take_line(Stream& stream, std::string_view line);
  void write_log(std::string_view bytes);

  int rank_;
  Shown shown_;
  Screen& screen_;
  std::filesystem::path log_path_;
  Descriptor log_;
  std::array<Stream, 2> streams_;
  LastLines last_lines_;
};

} // namespace trireme::launch
