#include <trireme/data/tokens.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>
#include <trireme/data/windows.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace trireme::data {
namespace fs = std::filesystem;

class TokensDataset::MappedFile {
 public:
  MappedFile(fs::path path, int64_t first_token) : path_(std::move(path)), first_token_(first_token) {
    const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (fd < 0 || ::fstat(fd, &status) != 0) {
      fail(fd, std::strerror(errno), "Check the path.");
    }
    if (!S_ISREG(status.st_mode)) {
      fail(fd, "not a file", "Name the files of tokens themselves.");
    }
    bytes_ = static_cast<size_t>(status.st_size);
    if (bytes_ == 0) {
      fail(fd, "it is empty");
    }
    if (bytes_ % 2 != 0) {
      fail(fd, concat("it is ", bytes_, " bytes long, an odd number"),
           "Tokens are 2 bytes each (uint16); the file is cut off or another format.");
    }
    void* address = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
      fail(fd, concat("mmap: ", std::strerror(errno)));
    }
    ::close(fd);
    data_ = static_cast<const unsigned char*>(address);
    // What fits easily is read ahead whole. In larger files a sample is a few pages anywhere, for which the
    // system's usual read-ahead of 128 kB would read mostly in vain.
    constexpr size_t kReadAhead = size_t{256} << 20;
    ::madvise(address, bytes_, bytes_ <= kReadAhead ? MADV_WILLNEED : MADV_RANDOM);
  }
  ~MappedFile() {
    ::munmap(const_cast<unsigned char*>(data_), bytes_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const fs::path& path() const {
    return path_;
  }
  int64_t first_token() const {
    return first_token_;
  }
  int64_t num_tokens() const {
    return static_cast<int64_t>(bytes_ / 2);
  }
  void read(int64_t start, std::span<int64_t> out) const {
    const unsigned char* from = data_ + 2 * start;
    for (int64_t& token : out) {
      token = from[0] | from[1] << 8;
      from += 2;
    }
  }

 private:
  [[noreturn]] void fail(int fd, const std::string& why, const std::string& next = "") const {
    if (fd >= 0) {
      ::close(fd);
    }
    throw InputError("data", concat("cannot read tokens from ", path_.string(), ": ", why), next);
  }

  fs::path path_;
  int64_t first_token_;
  const unsigned char* data_ = nullptr;
  size_t bytes_ = 0;
};

TokensDataset::TokensDataset(const std::vector<fs::path>& files, int64_t sequence_length, int64_t vocab_size)
    : sequence_length_(sequence_length), vocab_size_(vocab_size) {
  if (files.empty()) {
    throw InputError("data", "no files of tokens are named");
  }
  for (const auto& path : files) {
    files_.push_back(std::make_unique<MappedFile>(path, num_tokens_));
    num_tokens_ += files_.back()->num_tokens();
  }
  size_ = count_windows(num_tokens_, sequence_length, files.size() == 1 ? files[0].string() : concat(files.size(), " files together"));
}

TokensDataset::~TokensDataset() = default;

void TokensDataset::read(int64_t start, std::span<int64_t> out) const {
  const auto after = [](int64_t token, const auto& file) { return token < file->first_token(); };
  auto file = std::upper_bound(files_.begin(), files_.end(), start, after) - 1;
  while (!out.empty()) {
    const int64_t offset = start - (*file)->first_token();
    const auto count = std::min(out.size(), static_cast<size_t>((*file)->num_tokens() - offset));
    const auto part = out.first(count);
    (*file)->read(offset, part);
    if (vocab_size_ > 0 && *std::max_element(part.begin(), part.end()) >= vocab_size_) {
      const auto first = std::find_if(part.begin(), part.end(), [this](int64_t token) { return token >= vocab_size_; });
      throw InputError("data", concat((*file)->path().string(), ": token ", offset + (first - part.begin()), " is ", *first,
                                      ", the vocabulary has ", vocab_size_, " (0 to ", vocab_size_ - 1, ')'),
                       "Raise the model's vocab_size or make the tokens with the right tokenizer.");
    }
    out = out.subspan(count);
    start += static_cast<int64_t>(count);
    ++file;
  }
}

void TokensDataset::check() const {
  if (vocab_size_ == 0) {
    return;
  }
  std::vector<int64_t> part(1 << 16);
  for (int64_t start = 0; start < num_tokens_; start += std::ssize(part)) {
    read(start, std::span(part).first(static_cast<size_t>(std::min<int64_t>(std::ssize(part), num_tokens_ - start))));
  }
}

Batch TokensDataset::get(std::span<const int64_t> indices) const {
  return get_part(indices, Part::all);
}

Batch TokensDataset::get_part(std::span<const int64_t> indices, Part part) const {
  check_indices(indices, size_);
  return gather_windows(indices, sequence_length_, [this](int64_t start, std::span<int64_t> out) { read(start, out); }, part);
}

std::string TokensDataset::describe() const {
  return concat("tokens: ", format_count(static_cast<double>(num_tokens_)), " in ", format_count(static_cast<double>(size_)),
                " samples of ", sequence_length_, " (", files_[0]->path().filename().string(),
                files_.size() == 1 ? "" : concat(" and ", files_.size() - 1, " more"), ')');
}

} // namespace trireme::data
