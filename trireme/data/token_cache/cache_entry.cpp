#include <trireme/data/token_cache/cache_entry.h>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/base/json.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kEntryFormat = "trireme-token-cache";
constexpr int64_t kEntryVersion = 1;

uint64_t hex_number(const JsonNode& node) {
  const std::string& text = node.as_string();
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (error != std::errc() || end != text.data() + text.size() || text != hex_of(number)) {
    node.fail("must be 16 hexadecimal digits");
  }
  return number;
}

int64_t count_in(ObjectReader& reader, const std::string& key, int64_t least = 0) {
  const JsonNode& node = reader.require(key);
  const int64_t count = node.as_integer();
  if (count < least) {
    node.fail(concat("must be at least ", least, ", got ", count));
  }
  return count;
}

void check_plain_name(const JsonNode& node, const std::string& name) {
  if (name.empty() || name.starts_with('.') || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    node.fail("must be the name of a file in this folder");
  }
}

const std::string& plain_name(const JsonNode& node) {
  check_plain_name(node, node.as_string());
  return node.as_string();
}

ordered_json write_split(const CacheEntry::Split& split) {
  ordered_json shards = ordered_json::array();
  for (const ShardIndex::Shard& shard : split.shards) {
    shards.push_back({{"file", shard.file}, {"tokens", shard.tokens}, {"checksum", hex_of(shard.checksum)}});
  }
  return {{"byte_counts", split.bytes.counts}, {"shards", std::move(shards)}};
}

CacheEntry::Split read_split(const JsonNode& node) {
  constexpr int64_t kMost = int64_t{1} << 54; // 256 of them can be added
  CacheEntry::Split out;
  ObjectReader reader(node);
  const JsonNode& counts = reader.require("byte_counts");
  if (counts.elements().size() != out.bytes.counts.size()) {
    counts.fail(concat("must have 256 numbers, got ", counts.elements().size()));
  }
  for (size_t i = 0; i < out.bytes.counts.size(); ++i) {
    const int64_t count = counts.elements()[i].as_integer();
    if (count < 0 || count > kMost) {
      counts.elements()[i].fail(concat(count, " is no number of bytes"));
    }
    out.bytes.counts[i] = count;
    out.bytes.total += count;
  }
  for (const JsonNode& element : reader.require("shards").elements()) {
    ObjectReader shard(element);
    out.shards.push_back({.file = plain_name(shard.require("file")),
                          .tokens = count_in(shard, "tokens", 1),
                          .checksum = hex_number(shard.require("checksum"))});
    shard.finish();
  }
  if (out.shards.empty()) {
    node.fail("\"shards\" is empty");
  }
  reader.finish();
  return out;
}

uint64_t checksum_of(const ordered_json& without) {
  const std::string text = without.dump(-1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace);
  return XXH3_64bits(text.data(), text.size());
}

Descriptor open_source(const fs::path& file, struct stat& status) {
  Descriptor opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!opened || ::fstat(opened.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw InputError("data", concat("cannot read ", file.string(), ": ", opened ? "no file" : std::strerror(errno)),
                     "Check the path.");
  }
  return opened;
}

} // namespace

int64_t CacheEntry::Split::tokens() const {
  int64_t sum = 0;
  for (const ShardIndex::Shard& shard : shards) {
    sum += shard.tokens;
  }
  return sum;
}

std::string CacheEntry::to_text() const {
  ordered_json made = {{"format", kEntryFormat}, {"version", kEntryVersion}, {"folder", folder}};
  made["sources"] = ordered_json::array();
  for (const Source& source : sources) {
    made["sources"].push_back({{"file", source.file},
                               {"bytes", source.bytes},
                               {"inode", source.inode},
                               {"modified_ns", source.modified_ns},
                               {"changed_ns", source.changed_ns},
                               {"hash", hex_of(source.hash)}});
  }
  made["splits"] = ordered_json::object();
  for (const auto& [name, split] : splits) {
    made["splits"][name] = write_split(split);
  }
  made["labels"] = labels;
  const std::string checksum = hex_of(checksum_of(made));
  made["checksum"] = checksum;
  return made.dump(1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace) + "\n";
}

CacheEntry CacheEntry::parse(std::string_view text, const std::string& source) {
  JsonNode root = JsonNode::parse(text, source);
  ObjectReader reader(root);
  if (reader.require_as<std::string>("format") != kEntryFormat ||
      reader.require_as<int64_t>("version") != kEntryVersion) {
    root.fail("this is no entry of a cache of tokens of this version");
  }
  const uint64_t checksum = hex_number(reader.require("checksum"));
  ordered_json without = root.plain();
  without.erase("checksum");
  if (checksum_of(without) != checksum) {
    root.fail("its checksum is wrong");
  }
  CacheEntry entry;
  entry.folder = plain_name(reader.require("folder"));
  for (const JsonNode& node : reader.require("sources").elements()) {
    ObjectReader file(node);
    entry.sources.push_back({.file = file.require_as<std::string>("file"),
                             .bytes = count_in(file, "bytes"),
                             .inode = file.require_as<int64_t>("inode"),
                             .modified_ns = file.require_as<int64_t>("modified_ns"),
                             .changed_ns = file.require_as<int64_t>("changed_ns"),
                             .hash = hex_number(file.require("hash"))});
    file.finish();
  }
  for (const auto& [name, split] : reader.require("splits").members()) {
    check_plain_name(split, name);
    entry.splits[name] = read_split(split);
  }
  for (const JsonNode& label : reader.require("labels").elements()) {
    entry.labels.push_back(label.as_string());
  }
  reader.finish();
  return entry;
}

CacheEntry::Source stamp_of(const fs::path& file) {
  const auto ns = [](const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; };
  struct stat status{};
  open_source(file, status);
  return {.file = file.string(),
          .bytes = static_cast<int64_t>(status.st_size),
          .inode = static_cast<int64_t>(status.st_ino & INT64_MAX),
          .modified_ns = ns(status.st_mtim),
          .changed_ns = ns(status.st_ctim)};
}

uint64_t hash_of(const fs::path& file, const Stop& stop) {
  constexpr size_t kBytes = size_t{1} << 20;
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  struct stat status{};
  const Descriptor opened = open_source(file, status);
  const std::unique_ptr<XXH3_state_t, Free> state(XXH3_createState());
  XXH3_64bits_reset(state.get());
  std::string buffer(kBytes, '\0');
  for (;;) {
    const ssize_t count = ::read(opened.get(), buffer.data(), buffer.size());
    if (count > 0) {
      check_stop(stop, "reading the text");
      XXH3_64bits_update(state.get(), buffer.data(), static_cast<size_t>(count));
    } else if (count == 0) {
      return XXH3_64bits_digest(state.get());
    } else if (errno != EINTR) {
      throw InputError("data", concat("cannot read ", file.string(), ": ", std::strerror(errno)), "Check the disk.");
    }
  }
}

} // namespace trireme::data
