#include <trireme/launch/rank_output.h>

#include <trireme/base/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace trireme::launch {

RankOutput::RankOutput(int rank, const std::filesystem::path& log_dir, const std::string& heading, Shown shown,
                       Screen& screen, const std::string& kind)
    : name_(concat(kind, " ", rank)), shown_(shown), screen_(screen), log_path_(log_dir / concat(kind, rank, ".log")) {
  log_ = Descriptor(::open(log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log_) {
    throw InputError("launch", concat("cannot write ", log_path_.string(), ": ", std::strerror(errno)),
                     "Name another log folder.");
  }
  if (::lseek(log_.get(), 0, SEEK_END) > 0) {
    write_log(concat("---- ", heading, " ----\n"));
  }
  streams_[0].outlet = &screen.out();
  streams_[1].outlet = &screen.err();
}

bool RankOutput::wants(int stream) const {
  return shown_ == Shown::not_at_all || !streams_[static_cast<size_t>(stream)].outlet->full();
}

void RankOutput::take(int stream_number, std::string_view bytes) {
  Stream& stream = streams_[static_cast<size_t>(stream_number)];
  write_log(bytes);
  if (shown_ == Shown::as_it_is) {
    stream.outlet->write(bytes);
  }
  stream.splitter.add(bytes, [&](std::string_view line) { take_line(stream, line); });
}

void RankOutput::end_lines() {
  for (Stream& stream : streams_) {
    stream.splitter.finish([&](std::string_view line) { take_line(stream, line); });
  }
}

void RankOutput::finish() {
  end_lines();
  log_.close();
}

void RankOutput::take_line(Stream& stream, std::string_view line) {
  last_lines_.add(line);
  if (shown_ != Shown::with_prefix) {
    return;
  }
  // Trireme's own log lines already have the prefix.
  const std::string prefix = concat("[", name_, "] ");
  stream.outlet->write(concat(line.starts_with(prefix) ? "" : prefix, line, "\n"));
}

void RankOutput::write_log(std::string_view bytes) {
  while (log_ && !bytes.empty()) {
    const ssize_t wrote = ::write(log_.get(), bytes.data(), bytes.size());
    if (wrote >= 0) {
      bytes.remove_prefix(static_cast<size_t>(wrote));
    } else if (errno != EINTR) {
      screen_.say(concat("cannot write ", log_path_.string(), ": ", std::strerror(errno),
                         ". The ranks continue without this log."));
      log_.close();
    }
  }
}

} // namespace trireme::launch
