#include <trireme/data/mapped_tokens.h>

#include <trireme/base/error.h>
#include <trireme/data/packed.h>
#include <trireme/data/token_scan.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <ctime>
#include <map>
#include <mutex>
#include <string_view>

namespace trireme::data {
namespace {

constexpr int64_t kIgnored = -100; // kIgnoredTarget of batch.h, which needs torch

using Largest = std::vector<std::atomic<int64_t>>;

// One per file, in its current version, and width. A file that was just written is not cached: a second write could
// leave the same time stamp.
std::shared_ptr<Largest> known_of(const FileMap::Stamp& stamp, int64_t token_bytes, size_t blocks) {
  constexpr time_t kSettled = 2;
  const auto fresh = [&] {
    auto largest = std::make_shared<Largest>(blocks);
    std::fill(largest->begin(), largest->end(), -1);
    return largest;
  };
  if (::time(nullptr) - std::max(stamp.modified.tv_sec, stamp.changed.tv_sec) < kSettled) {
    return fresh();
  }
  static std::mutex mutex;
  static std::map<std::array<int64_t, 8>, std::shared_ptr<Largest>> files;
  const auto number = [](auto value) { return static_cast<int64_t>(value); };
  const std::array<int64_t, 8> key = {number(stamp.device),
                                      number(stamp.inode),
                                      number(stamp.size),
                                      number(stamp.modified.tv_sec),
                                      number(stamp.modified.tv_nsec),
                                      number(stamp.changed.tv_sec),
                                      number(stamp.changed.tv_nsec),
                                      token_bytes};
  const std::lock_guard lock(mutex);
  std::shared_ptr<Largest>& known = files[key];
  known = known ? known : fresh();
  return known;
}

} // namespace

MappedTokens::MappedTokens(TokenFile file, int64_t first_token, int64_t first_document, int64_t token_bytes)
    : file_(std::move(file)), first_token_(first_token), first_document_(first_document) {
  const std::span<const unsigned char> whole = file_.map->bytes();
  // Prefetches small files entirely. In larger files a sample is a few random pages, for which the system's usual
  // read-ahead of 128 kB would be mostly wasted.
  constexpr size_t kReadAhead = size_t{256} << 20;
  ::madvise(const_cast<unsigned char*>(whole.data()), whole.size(),
            whole.size() <= kReadAhead ? MADV_WILLNEED : MADV_RANDOM);
  data_ = whole.data() + file_.begin;
  if (file_.kind == TokenFile::Kind::raw) {
    token_bytes_ = token_bytes == 0 ? 2 : token_bytes;
    bytes_ = whole.size();
    if (token_bytes == 0) {
      refuse_other_formats();
    }
    if (bytes_ % static_cast<size_t>(token_bytes_) != 0) {
      refuse_token_file(file_.path,
                        token_bytes_ == 2 ? concat("it is ", bytes_, " bytes long, an odd number")
                                          : concat("it is ", bytes_, " bytes long, not a multiple of ", token_bytes_),
                        concat("Tokens are ", token_bytes_, " bytes each (uint", 8 * token_bytes_,
                               "); the file is cut off or another format."));
    }
  } else {
    token_bytes_ = file_.token_bytes;
    bytes_ = static_cast<size_t>(file_.num_tokens * file_.token_bytes);
  }
  largest_ = known_of(file_.map->stamp(), token_bytes_, static_cast<size_t>(num_blocks()));
}

void MappedTokens::refuse_other_formats() const {
  constexpr size_t kLooked = 1 << 20;
  constexpr const char* kGoOn = " If these are 16-bit tokens anyway, set data.token_bytes to 2.";
  const std::string_view head(reinterpret_cast<const char*>(data_), std::min<size_t>(bytes_, 16));
  if (const std::string_view packing = packing_of(head); !packing.empty()) {
    refuse_token_file(file_.path, concat("it is packed with ", packing),
                      concat("Unpack it; files of tokens are memory-mapped.", kGoOn));
  }
  if (head.starts_with("\x93NUMPY")) {
    refuse_token_file(file_.path, "it begins with the header of a .npy file",
                      concat("Write the tokens alone: np.load(FILE).astype(np.uint16).tofile(NEW).", kGoOn));
  }
  const int64_t suggested = suggested_token_bytes({data_, std::min(bytes_, kLooked)});
  if (suggested == 4) {
    refuse_token_file(file_.path, "every second 16-bit value is 0 or close to it, so these are probably 32-bit tokens",
                      concat("Set data.token_bytes to 4 if they are.", kGoOn));
  }
  if (suggested == 8) {
    refuse_token_file(
        file_.path, "three of four 16-bit values are 0 or close to it, so these are probably 64-bit tokens",
        concat("Convert them if they are: np.fromfile(FILE, np.int64).astype(np.uint16).tofile(NEW), or np.uint32 and "
               "data.token_bytes 4.",
               kGoOn));
  }
}

void MappedTokens::read(int64_t start, std::span<int64_t> out) const {
  const unsigned char* from = data_ + token_bytes_ * start;
  for (int64_t& token : out) {
    token = from[0] | from[1] << 8;
    if (token_bytes_ == 4) {
      token |= int64_t{from[2]} << 16 | int64_t{from[3]} << 24;
    }
    from += token_bytes_;
  }
}

int64_t MappedTokens::count_targets(int64_t start, int64_t count) const {
  if (file_.mask == nullptr) {
    return count;
  }
  const int64_t end = start + count;
  int64_t counted = 0;
  for (; start < end && start % 8 != 0; ++start) {
    counted += counts(start);
  }
  for (; start + 8 <= end; start += 8) {
    counted += std::popcount(file_.mask[start / 8]);
  }
  for (; start < end; ++start) {
    counted += counts(start);
  }
  return counted;
}

void MappedTokens::ignore_targets(int64_t start, std::span<int64_t> targets) const {
  if (file_.mask == nullptr) {
    return;
  }
  for (int64_t& target : targets) {
    target = counts(start++) ? target : kIgnored;
  }
}

std::span<const unsigned char> MappedTokens::block(int64_t index) const {
  const auto begin = static_cast<size_t>(index * kBlockBytes);
  return {data_ + begin, std::min<size_t>(kBlockBytes, bytes_ - begin)};
}

int64_t MappedTokens::largest_in(int64_t index, int64_t next) const {
  std::atomic<int64_t>& known = (*largest_)[static_cast<size_t>(index)];
  if (known < 0) {
    // Tokens behind a header begin inside a page; its start is what the system takes.
    const auto advise = [](std::span<const unsigned char> part, int advice) {
      static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
      const auto inside = reinterpret_cast<uintptr_t>(part.data()) % page;
      ::madvise(const_cast<unsigned char*>(part.data()) - inside, part.size() + inside, advice);
    };
    if (next < num_blocks()) {
      advise(block(next), MADV_WILLNEED);
    }
    known = largest_token(block(index), token_bytes_);
    advise(block(index), MADV_DONTNEED); // the pages stay in the system's cache
  }
  return known;
}

} // namespace trireme::data
