#include <trireme/generate/export_mark.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <nlohmann/json.hpp>

#include <sys/stat.h>

namespace trireme::generate {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kMark = "trireme_export.json";

// Of all files but the mark.
ordered_json files_of(const fs::path& folder) {
  ordered_json out = ordered_json::object();
  for (const auto& item : fs::directory_iterator(folder)) {
    struct stat about = {};
    if (item.path().filename() != kMark && ::lstat(item.path().c_str(), &about) == 0) {
      out[item.path().filename().string()] = {
          {"bytes", static_cast<int64_t>(about.st_size)},
          {"modified_ns", int64_t{about.st_mtim.tv_sec} * 1'000'000'000 + about.st_mtim.tv_nsec}};
    }
  }
  return out;
}

} // namespace

void write_export_mark(const fs::path& folder, int64_t step) {
  write_file_atomically(folder / kMark, ordered_json{{"step", step}, {"files", files_of(folder)}}.dump(2) + "\n");
}

ExportMark read_export_mark(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_regular_file(folder / kMark, ignored)) {
    return {};
  }
  const auto mark = ordered_json::parse(read_file(folder / kMark), nullptr, /*allow_exceptions=*/false);
  if (!mark.is_object() || !mark.contains("files") || !mark["files"].is_object() || !mark.contains("step") ||
      !mark["step"].is_number_integer()) {
    return {};
  }
  ExportMark out{mark["step"].get<int64_t>(), ""};
  const ordered_json there = files_of(folder);
  for (const ordered_json* files : {&there, &mark["files"]}) {
    for (const auto& [name, about] : files->items()) {
      if (out.changed.empty() &&
          (!there.contains(name) || !mark["files"].contains(name) || there[name] != mark["files"][name])) {
        out.changed = name;
      }
    }
  }
  return out;
}

} // namespace trireme::generate
