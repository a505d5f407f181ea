#include <trireme/train/commands.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/base/path.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

namespace trireme::train {

std::filesystem::path token_cache_of(const std::filesystem::path& out) {
  return without_end_slash(std::filesystem::absolute(out).lexically_normal()).parent_path() / ".tokens";
}

int with_output_written(int status) {
  std::cout.flush();
  if (std::cout && std::fflush(stdout) == 0) {
    return status;
  }
  log::error("the output could not be written: ", std::strerror(errno));
  return status == 0 ? 1 : status;
}

int report_failure(const std::exception& error) {
  if (const auto* const of_system = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    return report_failure(in_words(*of_system));
  }
  const auto* const ours = dynamic_cast<const Error*>(&error);
  const int status = ours != nullptr ? ours->exit_code() : 1;
  log::write(status == 0 ? log::Level::info : log::Level::error,
             error.what()); // 0: the process had nothing left to do
  return status;
}

namespace {
int failed_status = 1;
}

void set_failed_status(const TrainCommand& command) {
  failed_status = static_cast<int>(command.failed_status);
}

int ended_with(int status) {
  return status == 1 ? failed_status : status;
}

} // namespace trireme::train
