#pragma once

#include <trireme/data/text_bytes.h>
#include <trireme/data/token_files/shard_index.h>
#include <trireme/data/tokenize/stop.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// KEY.json of a cache of tokens: what texts its shards were made of.
struct CacheEntry {
  /// A file of text as it was when it was read.
  struct Source {
    std::string file;
    int64_t bytes = 0;
    /// An unchanged file has the same three; -1: they prove nothing, because it was written just before it was read.
    int64_t inode = -1;
    int64_t modified_ns = 0;
    int64_t changed_ns = 0;
    uint64_t hash = 0; ///< XXH3-64 of its content

    bool operator==(const Source&) const = default;
  };
  /// Shards, in a folder of the same name.
  struct Split {
    TextBytes bytes; ///< of its text; zeros for other shards
    std::vector<ShardIndex::Shard> shards;

    int64_t tokens() const;
  };

  std::string folder; ///< of the splits: a name beside KEY.json
  std::vector<Source> sources;
  std::map<std::string, Split> splits;
  std::vector<std::string> labels; ///< the names of labels, if they have names

  /// With a checksum.
  std::string to_text() const;
  /// Errors: InputError for anything that to_text() does not write.
  static CacheEntry parse(std::string_view text, const std::string& source);
};

/// The size and times of a file, without its hash. Errors: InputError for one that cannot be read.
CacheEntry::Source stamp_of(const std::filesystem::path& file);
/// XXH3-64 of a file's content. Cost: one read. Errors: InputError; Error if `stop` ended it.
uint64_t hash_of(const std::filesystem::path& file, const Stop& stop = nullptr);

} // namespace trireme::data
