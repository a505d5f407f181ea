#include <trireme/checkpoint/staging.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kClaim = ".trireme-save";
constexpr size_t kIdDigits = 32;

fs::path with_end(const fs::path& stem, std::string_view end) {
  return stem.parent_path() / concat(stem.filename().string(), end);
}

// ".tmp-<tag>-<32 digits>" of ".tmp-<tag>-<32 digits>.trireme-save", "" for any other name.
std::string stem_of(const std::string& name) {
  const size_t shortest = kTemporary.size() + 2 + kIdDigits + kClaim.size();
  if (name.size() < shortest || !name.starts_with(kTemporary) || !name.ends_with(kClaim)) {
    return "";
  }
  const std::string stem = name.substr(0, name.size() - kClaim.size());
  const std::string_view digits = std::string_view(stem).substr(stem.size() - kIdDigits);
  const bool is_id = std::all_of(digits.begin(), digits.end(),
                                 [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  return is_id && stem[stem.size() - kIdDigits - 1] == '-' ? stem : "";
}

// Removes the claim last, so that the next save completes an interrupted removal.
void remove_claimed(const fs::path& stem, const fs::path& claim) noexcept {
  try {
    const std::string name = stem.filename().string();
    std::vector<fs::path> claimed;
    for (const auto& entry : fs::directory_iterator(stem.parent_path())) {
      if (entry.path().filename().string().starts_with(name) && entry.path() != claim) {
        claimed.push_back(entry.path());
      }
    }
    for (const fs::path& path : claimed) {
      fs::remove_all(path);
    }
    ::unlink(claim.c_str());
  } catch (const std::exception&) {
    // The next save tries again.
  }
}

} // namespace

Staging::Staging(const fs::path& root, const std::string& tag, const std::string& save_id)
    : stem_(folder_of(root, tag, save_id)) {
  const fs::path claim = with_end(stem_, kClaim);
  const auto fail = [&](const fs::path& path) {
    throw Error("checkpoint", concat("cannot create ", path.string(), ": ", describe_write_failure(errno, path, 0)),
                "Existing files are unchanged.");
  };
  // Until it is locked, another save may take the claim for that of a killed save and remove it.
  do {
    claim_ = Descriptor(::open(claim.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!claim_) {
      fail(claim);
    }
  } while (::flock(claim_.get(), LOCK_EX) == 0 && !is_at(claim_.get(), claim));
  if (::mkdir(stem_.c_str(), 0700) != 0) {
    const int code = errno;
    ::unlink(claim.c_str());
    errno = code;
    fail(stem_);
  }
}

Staging::~Staging() {
  remove_claimed(stem_, with_end(stem_, kClaim));
}

fs::path Staging::folder_of(const fs::path& root, const std::string& tag, const std::string& save_id) {
  return root / concat(kTemporary, tag, '-', save_id);
}

fs::path Staging::latest() const {
  return with_end(stem_, ".latest");
}

fs::path Staging::removed() {
  return with_end(stem_, concat(".removed", ++removed_));
}

void remove_dead_stagings(const fs::path& root) {
  std::vector<fs::path> stems;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string stem = stem_of(entry.path().filename().string());
    std::error_code ignored;
    if (!stem.empty() && entry.symlink_status(ignored).type() == fs::file_type::regular) {
      stems.push_back(root / stem);
    }
  }
  for (const fs::path& stem : stems) {
    const fs::path claim = with_end(stem, kClaim);
    const Descriptor held(::open(claim.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    if (held && ::flock(held.get(), LOCK_EX | LOCK_NB) == 0 && is_at(held.get(), claim)) {
      remove_claimed(stem, claim);
    }
  }
}

} // namespace trireme::checkpoint
