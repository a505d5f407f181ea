#include <trireme/activations/file_space.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <random>
#include <unistd.h>

namespace trireme::activations {
namespace {

namespace fs = std::filesystem;

// No other file of this or another process has it, also where processes of several containers or hosts, whose numbers repeat, share the folder.
fs::path fresh_name(const fs::path& folder) {
  static std::atomic<int64_t> count = 0;
  std::random_device random;
  return folder / concat("activations_", ::getpid(), '_', random(), random(), '_', count++);
}

// As large as is wanted, or, on a disk that has less room, as is needed.
aio::File make_file(const fs::path& name, int64_t wanted, int64_t needed) {
  try {
    return aio::File::create_unnamed(name, std::max(wanted, needed));
  } catch (const Error&) {
    if (wanted <= needed) {
      throw;
    }
    return aio::File::create_unnamed(name, needed);
  }
}

} // namespace

FileSpace::FileSpace(fs::path folder, int64_t file_bytes) : folder_(std::move(folder)), file_bytes_(file_bytes) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (!fs::is_directory(folder_)) {
    throw InputError("activations", concat("nvme_path ", folder_.string(), " is no folder and cannot be made: ", describe_write_failure(error.value(), folder_, 0)), "Name a folder on a local disk that this user may write to.");
  }
}

std::shared_ptr<const FileSpace::Piece> FileSpace::take(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto from = [&](Opened& opened) -> std::shared_ptr<const Piece> {
    for (auto free = opened.free.begin(); free != opened.free.end(); ++free) {
      if (free->second < bytes) {
        continue;
      }
      const int64_t offset = free->first;
      const int64_t rest = free->second - bytes;
      opened.free.erase(free);
      if (rest > 0) {
        opened.free.emplace(offset + bytes, rest);
      }
      return {new Piece{&opened.file, offset, bytes}, [space = shared_from_this(), &opened](const Piece* piece) {
                space->give_back(opened, piece->offset, piece->bytes);
                delete piece;
              }};
    }
    return nullptr;
  };
  for (Opened& opened : files_) {
    if (auto piece = from(opened)) {
      return piece;
    }
  }
  aio::File file = make_file(fresh_name(folder_), file_bytes_, bytes);
  const int64_t size = file.size();
  files_.push_back({std::move(file), {{0, size}}});
  return from(files_.back());
}

void FileSpace::give_back(Opened& opened, int64_t offset, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  auto at = opened.free.emplace(offset, bytes).first;
  if (const auto next = std::next(at); next != opened.free.end() && at->first + at->second == next->first) {
    at->second += next->second;
    opened.free.erase(next);
  }
  if (at != opened.free.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second == at->first) {
      before->second += at->second;
      opened.free.erase(at);
    }
  }
}

int64_t FileSpace::bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t all = 0;
  for (const Opened& opened : files_) {
    all += opened.file.size();
  }
  return all;
}

} // namespace trireme::activations
