#include <trireme/data/tokenize/output_folder.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/data/token_files/shard_index.h>

#include <string>

namespace trireme::data {

namespace fs = std::filesystem;

void check_output_folder(const fs::path& path, bool replace) {
  std::error_code ignored;
  if (!is_there(path)) {
    return;
  }
  if (!fs::exists(path, ignored)) {
    throw InputError("data", concat(path.string(), " is a link to nothing"), "Name a new folder with --out.");
  }
  if (!fs::is_directory(path, ignored)) {
    throw InputError("data", concat(path.string(), " is a file"), "Name a new folder with --out.");
  }
  if (fs::is_empty(path, ignored) || (replace && is_shard_folder(path))) {
    return;
  }
  if (is_shard_folder(path)) {
    throw InputError("data", concat(path.string(), " already has finished token shards"),
                     "Name another folder with --out, or replace it with --force.");
  }
  throw InputError("data", concat(path.string(), " has files that are no token shards"),
                   "Name a new folder with --out.");
}

NewFolder make_output_folder(const fs::path& path, bool replace) {
  check_output_folder(path, replace);
  return NewFolder("data", path, "", ".unfinished.");
}

void put_in_place(NewFolder& folder, bool replace) {
  try {
    folder.take_place([&](const fs::path& there) { check_output_folder(there, replace); });
  } catch (const Error&) {
    log::warning("the finished shards are in ", folder.keep().string(), ", which may be renamed");
    throw;
  }
}

} // namespace trireme::data
