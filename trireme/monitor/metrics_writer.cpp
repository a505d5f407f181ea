#include <trireme/monitor/metrics_writer.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/monitor/resources.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace trireme::monitor {
namespace {

namespace fs = std::filesystem;

/// Keeps lines unchanged (keys of a later version must survive), except those past `resumed_step`.
int64_t drop_later_steps(const fs::path& path, int64_t resumed_step) {
  const std::string content = read_file(path);
  std::vector<std::pair<int64_t, std::string_view>> kept;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const auto line = std::string_view(content).substr(begin, end - begin);
    begin = end + 1;
    const auto metrics = parse_metrics_line(line);
    if (!metrics) {
      continue;
    }
    while (!kept.empty() && kept.back().first >= metrics->step) {
      kept.pop_back();
    }
    kept.emplace_back(metrics->step, line);
  }
  std::string result;
  int64_t last_step = -1;
  for (const auto& [step, line] : kept) {
    if (step <= resumed_step) {
      result.append(line).push_back('\n');
      last_step = step;
    }
  }
  if (result != content) {
    write_file_atomically(path, result);
  }
  return last_step;
}

} // namespace

MetricsWriter::MetricsWriter(const fs::path& path, std::optional<int64_t> resumed_step) : path_(path) {
  std::error_code error;
  std::error_code no_folder;
  if (path.has_parent_path()) {
    make_private_folders(path.parent_path(), no_folder);
  }
  if (fs::exists(path, error)) {
    if (resumed_step) {
      last_step_ = drop_later_steps(path, *resumed_step);
    } else if (fs::file_size(path, error) > 0 && !error) {
      fs::path previous = path;
      previous.replace_extension(".previous" + path.extension().string());
      fs::rename(path, previous, error);
      if (error) {
        throw Error("metrics", concat("cannot rename ", path.string(), " of the earlier run: ", error.message()),
                    "Use another output folder.");
      }
    }
  }
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd_ < 0) {
    throw Error("metrics",
                concat("cannot write ", path.string(), ": ",
                       describe_write_failure(no_folder ? no_folder.value() : errno, path, 0)),
                "Check the output folder and its permissions.");
  }
}

MetricsWriter::~MetricsWriter() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void MetricsWriter::write(StepMetrics metrics) {
  if (metrics.step <= last_step_) {
    throw Error("metrics", concat("step ", metrics.step, " comes after step ", last_step_, " in ", path_.string()),
                "Write each step once, with all its measurements.");
  }
  if (!metrics.wall_time) {
    metrics.wall_time = unix_seconds();
  }
  const std::string line = metrics_line(metrics) + '\n';
  const off_t before = ::lseek(fd_, 0, SEEK_END);
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(fd_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      const std::string reason = describe_write_failure(errno, path_, line.size());
      // Half a line would corrupt the next one; if this fails too, readers skip the broken line.
      [[maybe_unused]] const int truncated = before >= 0 ? ::ftruncate(fd_, before) : -1;
      throw Error("metrics", concat("cannot write step ", metrics.step, " to ", path_.string(), ": ", reason),
                  "The lines before it are in the file.");
    }
    done += static_cast<size_t>(n);
  }
  last_step_ = metrics.step;
}

} // namespace trireme::monitor
