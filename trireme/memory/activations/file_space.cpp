#include <trireme/memory/activations/file_space.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <iterator>
#include <random>

namespace trireme::activations {
namespace {

namespace fs = std::filesystem;

// A name that no other process uses, even if processes of several containers or hosts, whose ids repeat, share the
// folder.
fs::path fresh_name(const fs::path& folder) {
  static std::atomic<int64_t> count = 0;
  std::random_device random;
  return folder / concat("activations_", ::getpid(), '_', random(), random(), '_', count++);
}

} // namespace

FileSpace::FileSpace(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (!fs::is_directory(folder_)) {
    throw InputError("activations",
                     concat("nvme_path ", folder_.string(),
                            " is not a folder and cannot be made: ", describe_write_failure(error.value(), folder_, 0)),
                     "Name a folder on a local disk that this user may write to.");
  }
}

std::shared_ptr<const FileSpace::Extent> FileSpace::take(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const int64_t offset = place_for(bytes);
  return {new Extent{&*file_, offset, bytes}, [space = shared_from_this()](const Extent* piece) {
            space->give_back(piece->offset, piece->bytes);
            delete piece;
          }};
}

// Removes the place from free_.
int64_t FileSpace::place_for(int64_t bytes) {
  auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& part) { return part.second >= bytes; });
  if (found == free_.end()) {
    const bool ends_free = !free_.empty() && free_.rbegin()->first + free_.rbegin()->second == size();
    const int64_t begin = ends_free ? free_.rbegin()->first : size();
    if (file_) {
      file_->grow(begin + bytes);
    } else {
      file_ = aio::File::create_unnamed(fresh_name(folder_), bytes);
    }
    free_[begin] = size() - begin;
    found = std::prev(free_.end());
  }
  const auto [offset, there] = *found;
  free_.erase(found);
  if (there > bytes) {
    free_.emplace(offset + bytes, there - bytes);
  }
  return offset;
}

void FileSpace::give_back(int64_t offset, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  auto at = free_.emplace(offset, bytes).first;
  if (const auto next = std::next(at); next != free_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at != free_.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second == at->first) {
      before->second += at->second;
      free_.erase(at);
    }
  }
}

int64_t FileSpace::bytes() const {
  const std::lock_guard lock(mutex_);
  return size();
}

int64_t FileSpace::room(int64_t ranks) const {
  std::error_code error;
  const fs::space_info disk = fs::space(folder_, error);
  return bytes() + (error ? 0 : static_cast<int64_t>(disk.available / static_cast<uintmax_t>(ranks)));
}

} // namespace trireme::activations
