#include <trireme/generate/same_files.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/hash.h>
#include <trireme/comm/differences.h>
#include <trireme/engine/same_options.h>

#include <nlohmann/json.hpp>

#include <sys/stat.h>
#include <string>

namespace trireme::generate {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// One file alone has it: its place on its disk, its size and the time of its last change.
std::string place_of(const fs::path& file) {
  struct stat status{};
  if (::stat(file.c_str(), &status) != 0) {
    return "absent";
  }
  return concat(status.st_dev, ' ', status.st_ino, ' ', status.st_size, ' ', status.st_ctim.tv_sec, ' ',
                status.st_ctim.tv_nsec);
}

ordered_json by_name(const std::vector<fs::path>& files, std::string (*value)(const fs::path&)) {
  ordered_json out = ordered_json::object();
  for (const fs::path& file : files) {
    out[file.filename().string()] = value(file);
  }
  return out;
}

} // namespace

void together(const comm::Group& ranks, const std::function<void()>& f) {
  ranks.size() == 1 ? f() : engine::check_together(ranks, f);
}

void check_same_files(const comm::Group& ranks, const std::function<std::vector<fs::path>()>& f) {
  if (ranks.size() == 1) {
    return;
  }
  std::vector<fs::path> files;
  ordered_json document;
  together(ranks, [&] {
    files = f();
    document = by_name(files, place_of);
  });
  if (comm::differences(ranks, document, "places of a model's files").empty()) {
    return;
  }
  together(ranks, [&] { document = by_name(files, checkpoint::hash_of_file); });
  const auto found = comm::differences(ranks, document, "contents of a model's files");
  if (!found.empty()) {
    throw InputError(
        "generate",
        concat(found.front().ranks(), " read different models: ", found.front().path.substr(1), " is not the same"),
        "Name the same model on every rank, and copy the same files to every host.");
  }
}

} // namespace trireme::generate
