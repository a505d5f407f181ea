#include <trireme/launch/rank_output.h>

#include <trireme/base/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace trireme::launch {

RankOutput::RankOutput(int rank, const std::filesystem::path& log_dir, const std::string& heading, Shown shown, Screen& screen)
    : rank_(rank), shown_(shown), screen_(screen), log_path_(log_dir / concat("rank", rank, ".log")) {
  log_ = Descriptor(::open(log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log_) {
    throw InputError("launch", concat("cannot write ", log_path_.string(), ": ", std::strerror(errno)),
                     "Name another log folder.");
  }
  if (::lseek(log_.get(), 0, SEEK_END) > 0) {
    write_log(concat("---- ", heading, " ----\n"));
  }
  streams_[0].outlet = &screen.out();
  streams_[1].outlet = &screen.err();
  for (Stream& stream : streams_) {
    stream.pipe = make_pipe();
    set_nonblocking(stream.pipe.read.get());
  }
}

void RankOutput::close_write_ends() {
  for (Stream& stream : streams_) {
    stream.pipe.write.close();
  }
}

void RankOutput::add_to(std::vector<pollfd>& polled) const {
  for (const Stream& stream : streams_) {
    if (stream.pipe.read && (shown_ == Shown::not_at_all || !stream.outlet->full())) {
      polled.push_back({stream.pipe.read.get(), POLLIN, 0});
    }
  }
}

void RankOutput::read_from(int fd) {
  for (Stream& stream : streams_) {
    if (stream.pipe.read.get() == fd) {
      read_once(stream);
    }
  }
}

void RankOutput::drain() {
  for (Stream& stream : streams_) {
    // A pipe holds 64 KiB unless somebody enlarged it; a child of the rank may go on writing without end.
    for (int reads = 0; reads < 64 && read_once(stream); ++reads) {
    }
  }
}

void RankOutput::finish() {
  drain();
  for (Stream& stream : streams_) {
    stream.splitter.finish([&](std::string_view line) { take_line(stream, line); });
    stream.pipe.read.close();
  }
  log_.close();
}

bool RankOutput::read_once(Stream& stream) {
  if (!stream.pipe.read) {
    return false;
  }
  char buffer[64 * 1024];
  const ssize_t got = ::read(stream.pipe.read.get(), buffer, sizeof(buffer));
  if (got > 0) {
    take(stream, std::string_view(buffer, static_cast<size_t>(got)));
    return true;
  }
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    stream.splitter.finish([&](std::string_view line) { take_line(stream, line); });
    stream.pipe.read.close();
  }
  return false;
}

void RankOutput::take(Stream& stream, std::string_view bytes) {
  write_log(bytes);
  if (shown_ == Shown::as_it_is) {
    stream.outlet->write(bytes);
  } else {
    stream.splitter.add(bytes, [&](std::string_view line) { take_line(stream, line); });
  }
}

void RankOutput::take_line(Stream& stream, std::string_view line) {
  if (shown_ == Shown::not_at_all) {
    last_lines_.add(line);
    return;
  }
  // Trireme's own log lines already begin so.
  const std::string prefix = concat("[rank ", rank_, "] ");
  stream.outlet->write(concat(line.starts_with(prefix) ? "" : prefix, line, "\n"));
}

void RankOutput::write_log(std::string_view bytes) {
  while (log_ && !bytes.empty()) {
    const ssize_t wrote = ::write(log_.get(), bytes.data(), bytes.size());
    if (wrote >= 0) {
      bytes.remove_prefix(static_cast<size_t>(wrote));
    } else if (errno != EINTR) {
      screen_.say(concat("cannot write ", log_path_.string(), ": ", std::strerror(errno), ". The ranks go on without this log."));
      log_.close();
    }
  }
}

} // namespace trireme::launch
