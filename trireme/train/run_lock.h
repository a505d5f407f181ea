#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace trireme::train {

/// Held while the launcher of a job that writes into the run folder is alive. The next one waits a little for a job
/// that is just ending. Has no effect on file systems without locks.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& folder)
      : file_(::open((folder / "logs" / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    for (int tries = 0; file_ && ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; ++tries) {
      if (tries == 20) {
        throw InputError("trireme", concat("another training writes into ", folder.string()),
                         "Wait until it ends, or name another folder with --out.");
      }
      ::usleep(100'000);
    }
  }
  /// Passes the lock to the program that replaces this process.
  void keep_in_next_program() {
    if (file_) {
      ::fcntl(file_.release(), F_SETFD, 0);
    }
  }

 private:
  Descriptor file_;
};

} // namespace trireme::train
