#include <trireme/checkpoint/folder.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/checkpoint/hash.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kReplaced = ".old-";
constexpr size_t kMaxTagBytes = 200;

bool starts_with(const std::string& text, std::string_view start) {
  return text.compare(0, start.size(), start) == 0;
}

void rename_or_throw(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw Error("checkpoint", concat("cannot rename ", from.string(), " to ", to.filename().string(), ": ",
                                     describe_write_failure(errno, from, 0)));
  }
}

// Renames it first: an interrupted removal must not look like a damaged checkpoint.
void remove_checkpoint(const fs::path& folder, const fs::path& doomed) {
  rename_or_throw(folder, doomed);
  fs::remove_all(doomed);
}

// True if a save created it under this name; a copy under another name belongs to the user.
bool is_named(const FoundCheckpoint& one, std::string_view start) {
  return one.about && one.folder.filename().string() == concat(start, one.about->tag);
}

// Describes the damage and the lost tensors: "…; it holds a, b and 4 more".
std::string held_by(const Manifest& manifest, size_t file) {
  std::string names;
  size_t count = 0;
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const StoredShard& shard : tensor.shards) {
      if (shard.file == file) {
        names += ++count <= 3 ? concat(count > 1 ? ", " : "", name) : "";
        break;
      }
    }
  }
  return concat(" (it holds ", names, count > 3 ? concat(" and ", count - 3, " more") : "", ")");
}

} // namespace

std::string tag_problem(const std::string& tag) {
  if (tag.empty() || tag.size() > kMaxTagBytes) {
    return concat("a tag has 1 to ", kMaxTagBytes, " characters, this one has ", tag.size());
  }
  const bool is_plain = std::all_of(tag.begin(), tag.end(),
                                    [](unsigned char c) { return c > 0x20 && c < 0x7f && c != '/' && c != '\\'; });
  if (!is_plain || tag[0] == '.' || tag == kLatestName) {
    return "a tag becomes a folder's name: visible ASCII without '/' or space, not starting with '.', not \"latest\"";
  }
  return "";
}

std::vector<FoundCheckpoint> list_checkpoints(const fs::path& root) {
  std::vector<FoundCheckpoint> found;
  std::error_code error;
  for (auto entry = fs::directory_iterator(root, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (!entry->is_directory(ignored) || (name[0] == '.' && !starts_with(name, kReplaced))) {
      continue;
    }
    const std::optional<About> about = read_about(entry->path());
    // A folder without a manifest is a checkpoint only if it has a checkpoint's name.
    if (about || fs::exists(entry->path() / kManifestName, ignored) || starts_with(name, "global_step")) {
      found.push_back({entry->path(), about});
    }
  }
  if (error && error != std::errc::no_such_file_or_directory &&
      error != std::errc::not_a_directory) { // there may be checkpoints, which must not be ignored
    throw in_words(fs::filesystem_error("cannot list", root, error));
  }
  const auto serial = [](const FoundCheckpoint& one) { return one.about ? one.about->serial : -1; };
  std::sort(found.begin(), found.end(), [&](const FoundCheckpoint& a, const FoundCheckpoint& b) {
    return serial(a) != serial(b) ? serial(a) > serial(b) : a.folder > b.folder;
  });
  return found;
}

std::vector<FoundCheckpoint> list_to_open(const fs::path& root, const std::string& latest) {
  std::vector<FoundCheckpoint> all = list_checkpoints(root);
  const auto named =
      std::find_if(all.begin(), all.end(), [&](const FoundCheckpoint& one) { return one.folder.filename() == latest; });
  if (named != all.end()) {
    std::error_code unknown; // the earliest time then
    const auto written = fs::last_write_time(root / kLatestName, unknown);
    const auto was_left = [&](const FoundCheckpoint& one) {
      return named->about && one.about && one.about->serial > named->about->serial &&
             fs::last_write_time(one.folder / kManifestName, unknown) > written;
    };
    std::rotate(std::find_if_not(all.begin(), named, was_left), named, named + 1);
  }
  return all;
}

std::string read_latest(const fs::path& root) {
  std::error_code error;
  if (!fs::is_regular_file(root / kLatestName, error) || fs::file_size(root / kLatestName, error) > 2 * kMaxTagBytes) {
    return "";
  }
  std::string tag = read_file(root / kLatestName);
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' ')) {
    tag.pop_back();
  }
  return tag_problem(tag).empty() ? tag : "";
}

void put_in_place(Staging& staging, const fs::path& folder) {
  std::error_code error;
  const fs::path root = folder.parent_path();
  if (!fs::exists(folder, error)) {
    rename_or_throw(staging.folder(), folder);
  } else if (::renameat2(AT_FDCWD, staging.folder().c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) != 0) {
    // A file system without the exchange (NFS): two renames, and list_checkpoints() knows the name between them.
    const fs::path replaced = root / concat(kReplaced, folder.filename().string());
    if (fs::exists(replaced, error)) {
      if (!is_named({replaced, read_about(replaced)}, kReplaced)) {
        throw Error("checkpoint", concat(replaced.string(), " exists, and no save has created it"),
                    "Move or rename it.");
      }
      remove_checkpoint(replaced, staging.removed());
    }
    rename_or_throw(folder, replaced);
    sync_folder(root);
    rename_or_throw(staging.folder(), folder);
  }
  sync_folder(root);
}

void take_back(const Staging& staging, const fs::path& folder) noexcept {
  try {
    const fs::path replaced = folder.parent_path() / concat(kReplaced, folder.filename().string());
    if (fs::exists(staging.folder())) { // the earlier one, after an exchange
      ::renameat2(AT_FDCWD, staging.folder().c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE);
      return;
    }
    rename_or_throw(folder, staging.folder());
    if (fs::exists(replaced)) {
      rename_or_throw(replaced, folder);
    }
  } catch (const std::exception&) {
    // list_checkpoints() finds an intact one in any case; reports the first error.
  }
}

void remove_old(const fs::path& root, const std::string& tag, int64_t keep_last, Staging& staging) noexcept {
  try {
    int64_t kept = 0;
    for (const FoundCheckpoint& one : list_checkpoints(root)) {
      const bool is_kept = is_named(one, "") && (++kept <= keep_last || keep_last == 0 || one.folder.filename() == tag);
      if (is_named(one, kReplaced) || (is_named(one, "") && !is_kept)) {
        remove_checkpoint(one.folder, staging.removed());
      }
    }
  } catch (const std::exception& error) {
    log::warning("old checkpoints in ", root.string(), " could not be removed: ", error.what());
  }
}

std::string file_problem(const fs::path& folder, const Manifest& manifest, size_t file, bool verify_hash) {
  const ShardFile& expected = manifest.files[file];
  const fs::path path = folder / expected.name;
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) {
    return concat(path.string(), " is missing", held_by(manifest, file));
  }
  if (bytes != expected.bytes) {
    return concat(path.string(), " has ", bytes, " bytes, must have ", expected.bytes, held_by(manifest, file));
  }
  if (verify_hash) {
    if (const std::string hash = hash_of_file(path); hash != expected.hash) {
      return concat(path.string(), ": hash is ", hash, ", must be ", expected.hash, held_by(manifest, file));
    }
  }
  return "";
}

} // namespace trireme::checkpoint
