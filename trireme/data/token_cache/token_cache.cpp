#include <trireme/data/token_cache/token_cache.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/base/stamp.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/data/token_files/file_map.h>
#include <trireme/data/token_files/shard_format.h>
#include <trireme/data/token_files/tokenizer_hash.h>
#include <trireme/data/tokenize/input_stamp.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInUse = "in_use";

[[noreturn]] void fail_to_write(const fs::path& path, int code) {
  throw Error("data", concat("cannot write ", path.string(), ": ", describe_write_failure(code, path, 0)));
}

// A file that was written just before may change again without another time.
bool is_settled(const CacheEntry::Source& source) {
  constexpr int64_t kNanoseconds = 2'000'000'000;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec - std::max(source.modified_ns, source.changed_ns) >
         kNanoseconds;
}

CacheEntry::Source read_source(const fs::path& file, const Stop& stop = nullptr) {
  CacheEntry::Source source = stamp_of(file);
  source.inode = is_settled(source) ? source.inode : -1;
  source.hash = hash_of(file, stop);
  return source;
}

// A lock file has the process that locked it last: "123 on host".
void write_holder(int lock) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string holder = concat(::getpid(), " on ", host.data());
  if (::ftruncate(lock, 0) == 0 && ::pwrite(lock, holder.data(), holder.size(), 0) < 0) {
    log::debug("cannot write into a lock file: ", std::strerror(errno)); // waiting processes do without
  }
}

std::string holder_of(int lock) {
  std::array<char, 300> read{};
  const ssize_t count = ::pread(lock, read.data(), read.size(), 0);
  const std::string_view holder(read.data(), static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return concat(holder.empty() ? "another process" : concat("process ", printable(holder)),
                ", which tokenizes the same text");
}

enum class Same { stamp, content, neither };

// Brings `known` up to date if only the stamp of the file is another.
Same compare(CacheEntry::Source& known, const fs::path& file) {
  CacheEntry::Source now = stamp_of(file);
  now.hash = known.hash;
  now.file = known.file; // hosts may name it differently
  if (now == known) {
    return Same::stamp;
  }
  if (now.bytes != known.bytes) {
    return Same::neither;
  }
  now = read_source(file);
  if (now.hash != known.hash) {
    return Same::neither;
  }
  known = std::move(now);
  return Same::content;
}

void check_shards(const CacheEntry::Split& split, const fs::path& folder, bool compares_content) {
  for (const ShardIndex::Shard& shard : split.shards) {
    const FileMap map(folder / shard.file);
    const ShardHeader header = read_shard_header(map.bytes(), folder / shard.file);
    if (header.num_tokens != shard.tokens || header.checksum != shard.checksum ||
        (compares_content && !has_right_checksum(map.bytes(), header.checksum))) {
      throw InputError("data", concat((folder / shard.file).string(), " is not the shard that was written"));
    }
  }
}

} // namespace

void make_cache_folder(const fs::path& folder) {
  std::error_code error;
  make_private_folders(folder, error);
  if (error) {
    fail_to_write(folder, error.value());
  }
}

TokenCache::Key::Key(std::string_view rules, const std::string& spec, std::vector<fs::path> texts)
    : files(std::move(texts)), tokenizer_hash(data::tokenizer_hash(spec)) {
  std::string all = concat(rules, '\0', hex_of(tokenizer_hash));
  for (const fs::path& file : files) {
    all += '\0' + fs::weakly_canonical(fs::absolute(file)).string();
  }
  const XXH128_hash_t hash = XXH3_128bits(all.data(), all.size());
  name = hex_of(hash.high64) + hex_of(hash.low64);
}

std::vector<fs::path> CachedTokens::shards_of(const std::string& split) const {
  std::vector<fs::path> paths;
  for (const ShardIndex::Shard& shard : entry.splits.at(split).shards) {
    paths.push_back(folder / split / shard.file);
  }
  return paths;
}

std::optional<CachedTokens> TokenCache::find(const Key& key, Check check) const {
  constexpr int64_t kMostCompared = int64_t{1} << 30; // bytes of shards
  const fs::path file = folder_ / (key.name + ".json");
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) {
    return std::nullopt;
  }
  try {
    CacheEntry entry = CacheEntry::parse(read_file(file), file.string());
    bool has_new_stamp = false;
    for (size_t i = 0; i < key.files.size(); ++i) {
      const Same same = i < entry.sources.size() ? data::compare(entry.sources[i], key.files[i]) : Same::neither;
      if (same == Same::neither) {
        return std::nullopt;
      }
      has_new_stamp |= same == Same::content;
    }
    const fs::path folder = folder_ / entry.folder;
    const auto in_use = std::make_shared<Descriptor>(::open((folder / kInUse).c_str(), O_RDONLY | O_CLOEXEC));
    if (!*in_use || (::flock(in_use->get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) ||
        !is_at(in_use->get(), folder / kInUse)) {
      return std::nullopt;
    }
    int64_t tokens = 0;
    for (const auto& [name, split] : entry.splits) {
      tokens += split.tokens();
    }
    for (const auto& [name, split] : entry.splits) {
      check_shards(split, folder / name, check == Check::content && 4 * tokens <= kMostCompared);
    }
    if (has_new_stamp && check == Check::content) {
      try {
        write_file_atomically(file, entry.to_text());
      } catch (const Error& error) { // the texts are read again at the next start
        log::debug("cannot update ", file.string(), ": ", error.what());
      }
    }
    return CachedTokens{std::move(entry), folder, in_use};
  } catch (const InputError& error) {
    log::debug("the tokens in ", folder_.string(), " are of no use: ", error.what());
    return std::nullopt;
  }
}

CachedTokens TokenCache::find_or_make(const Key& key, const Write& write) const {
  if (auto found = find(key, Check::content)) {
    return *std::move(found);
  }
  make_cache_folder(folder_);
  const Descriptor locked = lock(key);
  if (auto found = find(key, Check::content)) { // another process made it
    return *std::move(found);
  }
  remove_others(key, "");
  constexpr std::chrono::seconds kLong{2};
  const auto begin = std::chrono::steady_clock::now();
  const CacheEntry entry = make(key, write);
  log::write(std::chrono::steady_clock::now() - begin > kLong ? log::Level::info : log::Level::debug,
             concat("tokenized into ", folder_.string(), ": ", key.files.front().string()));
  try {
    write_file_atomically(folder_ / (key.name + ".json"), entry.to_text());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(folder_ / entry.folder, ignored);
    throw;
  }
  if (auto found = find(key, Check::headers)) {
    remove_others(key, entry.folder);
    return *std::move(found);
  }
  throw Error("data", concat("what was written into ", folder_.string(), " is not there any more"));
}

CacheEntry TokenCache::make(const Key& key, const Write& write) const {
  constexpr size_t kDigits = 12;
  CacheEntry entry;
  entry.folder = concat(key.name, '.', random_id().substr(0, kDigits));
  const fs::path folder = folder_ / entry.folder;
  make_cache_folder(folder);
  try {
    const Descriptor writes = create_new(folder / kInUse, O_RDWR);
    if (!writes) {
      fail_to_write(folder / kInUse, errno);
    }
    ::flock(writes.get(), LOCK_EX | LOCK_NB);
    const std::vector<InputStamp> stamps(key.files.begin(), key.files.end());
    for (const fs::path& file : key.files) {
      entry.sources.push_back(read_source(file, stop_));
    }
    write(folder, entry);
    std::ranges::for_each(stamps, &InputStamp::check);
    for (const auto& [name, split] : entry.splits) {
      sync_folder(folder / name);
    }
    sync_folder(folder);
    return entry;
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    throw;
  }
}

// Waits for a process that makes the same entry. None where the file system has no locks, or after most_wait_: folders
// have different names, so two that make the same entry only do the work twice.
Descriptor TokenCache::lock(const Key& key) const {
  constexpr std::chrono::milliseconds kBetween{50};
  const fs::path path = folder_ / (key.name + ".lock");
  const auto deadline = std::chrono::steady_clock::now() + most_wait_;
  for (bool waits = false;; waits = true) {
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file && errno == ELOOP) {
      throw Error("data", path.string() + " is a symbolic link, and no lock can be one", "Remove it.");
    }
    if (!file) {
      fail_to_write(path, errno);
    }
    const bool locked = ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
    if (locked ? is_at(file.get(), path) : errno != EWOULDBLOCK) {
      if (locked) {
        write_holder(file.get());
      }
      return file;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      return {};
    }
    if (stop_ && stop_()) {
      throw Error("data", concat("asked to end while waiting for ", holder_of(file.get()), " (", path.string(), ')'));
    }
    if (!waits) {
      log::info("waiting up to ", format_seconds(static_cast<double>(most_wait_.count())), " for ",
                holder_of(file.get()), " (", path.string(), ')');
    }
    std::this_thread::sleep_for(kBetween);
  }
}

// What killed processes and replaced entries leave; not what a process writes or reads.
void TokenCache::remove_others(const Key& key, const std::string& kept) const {
  std::error_code ignored;
  for (const auto& item : fs::directory_iterator(folder_, ignored)) {
    const std::string name = item.path().filename().string();
    if (!name.starts_with(key.name + '.') || name == kept || !item.is_directory(ignored)) {
      continue;
    }
    const Descriptor in_use(::open((item.path() / kInUse).c_str(), O_RDWR | O_CLOEXEC));
    if (in_use && ::flock(in_use.get(), LOCK_EX | LOCK_NB) == 0) {
      fs::remove_all(item.path(), ignored);
    }
  }
}

} // namespace trireme::data
