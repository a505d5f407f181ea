#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/data/token_cache/cache_entry.h>
#include <trireme/data/tokenize/stop.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Shards of an entry of the cache.
struct CachedTokens {
  CacheEntry entry;
  std::filesystem::path folder; ///< of the splits
  /// The shards are not removed as long as a process holds it.
  std::shared_ptr<const Descriptor> in_use;

  std::vector<std::filesystem::path> shards_of(const std::string& split) const;
};

/// Tokens of texts in a folder, made once and read by all ranks, jobs and restarts that train on the same texts.
///
///   KEY.json     an entry (cache_entry.h)
///   KEY.RANDOM/  its shards, a folder for each split, and in_use, which processes that read them lock
///   KEY.lock     locked by the process that makes it, whose number and host it has
///
/// An entry is written behind its shards, all of them synced, so what a killed process leaves is no entry. An entry is
/// of use while its files are the same: their sizes, inodes and times, else the hash of their content. Several hosts
/// may share the folder. It may be removed while no job starts.
class TokenCache {
 public:
  static constexpr std::chrono::seconds kMostWait = std::chrono::minutes(30);

  /// What an entry is made of.
  struct Key {
    /// `rules`: how tokens are made of texts, and the options of that; `spec` as make_tokenizer(). Errors: InputError
    /// for a tokenizer that cannot be read.
    Key(std::string_view rules, const std::string& spec, std::vector<std::filesystem::path> texts);

    std::string name; ///< 32 hexadecimal digits: a hash of rules, tokenizer and the paths of the files
    std::vector<std::filesystem::path> files;
    uint64_t tokenizer_hash;
  };

  /// `most_wait`: for another process that makes the same entry, before this one makes its own. `stop`: asked every
  /// 50 ms while waiting, and by who makes an entry; find_or_make() throws Error once it returns true, and what was
  /// written is removed.
  explicit TokenCache(std::filesystem::path folder, std::chrono::seconds most_wait = kMostWait, Stop stop = nullptr)
      : folder_(std::move(folder)), most_wait_(most_wait), stop_(std::move(stop)) {}

  const Stop& stop() const { return stop_; }

  /// The entry, if it is there and of these files. Cost: the headers of shards, and files that have another inode or
  /// time are read.
  std::optional<CachedTokens> find(const Key& key) const { return find(key, Check::headers); }

  /// The same; makes it if there is none. `write` makes the shards of each split in a folder of its own below the one
  /// it is given, and fills in splits and labels of the entry. Shards of up to 1 GiB are read and compared with their
  /// checksums. Cost of making: `write`, and one read of the files for their hashes. Errors: those of `write`;
  /// InputError for files that cannot be read, ChangedInput (input_stamp.h) for those that change meanwhile, Error for
  /// a folder that cannot be written.
  using Write = std::function<void(const std::filesystem::path& folder, CacheEntry& entry)>;
  CachedTokens find_or_make(const Key& key, const Write& write) const;

 private:
  enum class Check { headers, content };
  std::optional<CachedTokens> find(const Key& key, Check check) const;
  CacheEntry make(const Key& key, const Write& write) const;
  Descriptor lock(const Key& key) const;
  void remove_others(const Key& key, const std::string& kept) const;

  std::filesystem::path folder_;
  std::chrono::seconds most_wait_;
  Stop stop_;
};

/// mkdir -p for this user alone. Errors: Error with the system's reason.
void make_cache_folder(const std::filesystem::path& folder);

} // namespace trireme::data
