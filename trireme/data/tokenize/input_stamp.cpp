#include <trireme/data/tokenize/input_stamp.h>

#include <sys/stat.h>

#include <utility>

namespace trireme::data {

InputStamp::InputStamp(std::filesystem::path file) : file_(std::move(file)) {
  struct stat status{};
  if (::stat(file_.c_str(), &status) != 0) {
    return;
  }
  const auto nanoseconds = [](const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; };
  bytes_ = status.st_size;
  modified_ns_ = nanoseconds(status.st_mtim);
  changed_ns_ = nanoseconds(status.st_ctim);
}

void InputStamp::check() const {
  if (*this != InputStamp(file_)) {
    throw ChangedInput("data", concat(file_.string(), " has changed while it was read"), "Start again.");
  }
}

} // namespace trireme::data
