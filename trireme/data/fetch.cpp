#include <trireme/data/fetch.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>
#include <trireme/data/fetch_command.h>
#include <trireme/data/fetch_sets.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <system_error>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSumsFile = "SHA256SUMS";

fs::path make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directory(path, error);
  if (error) {
    throw Error("data", concat("cannot make the folder ", path.string(), ": ", error.message()));
  }
  return path;
}

// The end of a program's error output, for error messages.
std::string complaint(const CommandResult& result) {
  std::string text = result.err.empty() ? result.out : result.err;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) {
    text.pop_back();
  }
  constexpr size_t kMost = 600;
  return text.size() > kMost ? "..." + text.substr(text.size() - kMost) : text;
}

std::map<std::string, std::string> sha256_of(const fs::path& folder, const std::vector<std::string>& names) {
  std::vector<std::string> arguments = {"sha256sum", "--"};
  arguments.insert(arguments.end(), names.begin(), names.end());
  const CommandResult result = run_command(arguments, folder);
  if (result.exit_code != 0) {
    throw Error("data", concat("sha256sum failed in ", folder.string(), ": ", complaint(result)));
  }
  std::map<std::string, std::string> sums;
  for (const std::string& line : split(result.out, '\n')) {
    if (line.size() > 66) {
      sums[line.substr(66)] = line.substr(0, 64); // "HASH  NAME"
    }
  }
  return sums;
}

// Reads a SHA256SUMS file; returns nothing if it is missing or malformed.
std::vector<FetchedFile> promised(const fs::path& folder) {
  std::vector<FetchedFile> files;
  if (!fs::is_regular_file(folder / kSumsFile)) {
    return files;
  }
  for (const std::string& line : split(read_file(folder / kSumsFile), '\n')) {
    const std::string name = line.size() > 66 ? line.substr(66) : "";
    std::error_code error;
    const uint64_t bytes =
        name.find('/') == std::string::npos && !name.empty() ? fs::file_size(folder / name, error) : 0;
    if (!name.empty() && !error) {
      files.push_back({name, bytes, line.substr(0, 64)});
    } else if (!line.empty()) {
      return {};
    }
  }
  return files;
}

// The files' current state if all of `expected` exist with that content, else nullopt.
std::optional<std::vector<FetchedFile>> present(const fs::path& folder, const std::vector<FetchedFile>& expected) {
  std::vector<std::string> names;
  for (const FetchedFile& file : expected) {
    std::error_code error;
    if (!fs::is_regular_file(folder / file.name, error) || fs::file_size(folder / file.name, error) != file.bytes ||
        error) {
      return std::nullopt;
    }
    names.push_back(file.name);
  }
  if (names.empty()) {
    return std::nullopt;
  }
  const auto sums = sha256_of(folder, names);
  const auto fits = [&](const FetchedFile& file) {
    const auto found = sums.find(file.name);
    return found != sums.end() && found->second == file.sha256;
  };
  return std::all_of(expected.begin(), expected.end(), fits) ? std::optional(expected) : std::nullopt;
}

// The set's source files in `folder`, or nothing when one is missing.
std::optional<std::vector<fs::path>> sources_in(const FetchSet& set, const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const std::string& name : set.sources) {
    fs::path path = folder / name;
    std::error_code error;
    if (!fs::is_regular_file(path, error) && path.extension() == ".gz") {
      path.replace_extension();
    }
    if (!fs::is_regular_file(path, error)) {
      return std::nullopt;
    }
    paths.push_back(path);
  }
  return paths;
}

std::vector<fs::path> unpack(const FetchSet& set, const fs::path& package, const fs::path& temporary) {
  const fs::path root = make_folder(temporary / "package");
  const CommandResult result =
      run_command({"dpkg-deb", "--extract", fs::absolute(package).string(), root.string()}, temporary);
  if (result.exit_code != 0) {
    throw InputError("data", concat("cannot unpack ", package.string(), ": ", complaint(result)),
                     "Download the package again.");
  }
  const auto sources = sources_in(set, root / set.package_folder);
  if (!sources) {
    throw InputError("data", concat(package.string(), " has no ", set.package_folder, '/', join(set.sources, ", ")),
                     concat("Give the Debian package ", set.data.package, '.'));
  }
  return *sources;
}

std::vector<fs::path> download(const FetchSet& set, const fs::path& temporary) {
  const std::string by_hand =
      concat("Get the package ", set.data.package, " another way (on Debian or Ubuntu: sudo apt-get update, ",
             "then sudo apt-get install ", set.data.package, "; or its .deb from a Debian mirror) and ",
             "run: trireme data fetch ", set.data.name, " --from PATH");
  const fs::path folder = make_folder(temporary / "download");
  std::optional<CommandResult> result;
  try {
    result = run_command({"apt-get", "--quiet", "download", set.data.package}, folder);
  } catch (const CommandMissing&) {
    throw Error("data",
                concat("the data set ", set.data.name, " comes in the Debian package ", set.data.package,
                       ", and this system has no apt-get to download it"),
                by_hand);
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (result->exit_code == 0 && entry.path().extension() == ".deb") {
      return unpack(set, entry.path(), temporary);
    }
  }
  throw Error("data",
              concat("apt-get cannot download ", set.data.package, " (exit status ", result->exit_code,
                     "): ", complaint(*result)),
              by_hand);
}

std::vector<fs::path> sources_from(const FetchSet& set, const fs::path& from, const fs::path& temporary) {
  if (from.extension() == ".deb" && fs::is_regular_file(from)) {
    return unpack(set, from, temporary);
  }
  if (fs::is_regular_file(from) && set.sources.size() == 1) {
    return {from};
  }
  for (const fs::path& folder : {from, from / "data", from / set.package_folder}) {
    if (const auto sources = sources_in(set, folder)) {
      return *sources;
    }
  }
  throw InputError(
      "data",
      concat(from.string(), fs::exists(from) ? " has no " : " does not exist; needed: ", join(set.sources, ", ")),
      concat("Give the .deb of ", set.data.package,
             ", the folder it was unpacked to, or the folder with these files."));
}

void compare(const FetchSet& set, const std::vector<FetchedFile>& files, const std::string& source) {
  for (const FetchedFile& known : set.known) {
    const auto found =
        std::find_if(files.begin(), files.end(), [&](const FetchedFile& file) { return file.name == known.name; });
    if (found == files.end() || found->sha256 != known.sha256) {
      const std::string got =
          found == files.end() ? "there is no such file" : concat("got ", found->sha256, " (", found->bytes, " bytes)");
      throw InputError(
          "data",
          concat(set.data.name, " from ", source, ": ", known.name, " is not the expected one: expected SHA-256 ",
                 known.sha256, " (", known.bytes, " bytes), ", got),
          "The package may have been updated. Give another copy with --from PATH, or take this one with --no-check.");
    }
  }
}

void install(const std::vector<FileContent>& contents, const fs::path& made, const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) {
    fs::rename(made, folder, error);
    if (!error) {
      sync_folder(folder.parent_path().empty() ? "." : folder.parent_path());
      return;
    }
  }
  // The folder exists: replaces file by file and keeps its other files.
  fs::create_directories(folder, error);
  const auto move = [&](const std::string& name) {
    fs::rename(made / name, folder / name, error);
    if (error) {
      throw Error("data", concat("cannot put ", name, " into ", folder.string(), ": ", error.message()));
    }
  };
  for (const FileContent& content : contents) {
    move(content.first);
  }
  move(kSumsFile);
  sync_folder(folder);
}

} // namespace

FetchResult fetch(const std::string& name, const fs::path& destination, const FetchOptions& options) {
  const auto& sets = fetch_sets();
  const auto found = std::find_if(sets.begin(), sets.end(), [&](const FetchSet& set) { return set.data.name == name; });
  if (found == sets.end()) {
    std::vector<std::string> names;
    for (const FetchSet& set : sets) {
      names.push_back(set.data.name);
    }
    throw InputError("data", concat("there is no data set \"", name, "\" to fetch."), did_you_mean(name, names));
  }
  const FetchSet& set = *found;
  FetchResult result;
  result.folder = (destination.empty() ? fs::path(".") : destination) / name;
  if (fs::exists(result.folder) && !fs::is_directory(result.folder)) {
    throw InputError("data", concat(result.folder.string(), " is a file; expected a folder"),
                     "Choose another folder with --out.");
  }
  if (const auto files = present(result.folder, options.check ? set.known : promised(result.folder))) {
    result.already_there = true;
    result.source = "already there";
    result.files = *files;
    return result;
  }

  // Absolute, because programs run inside of it.
  const ScratchFolder scratch(make_scratch_folder(concat('.', name, ".fetch"), result.folder.parent_path(),
                                                  "Choose another folder with --out."));
  std::vector<fs::path> sources;
  if (!options.from.empty()) {
    sources = sources_from(set, options.from, scratch.path);
    result.source = options.from.string();
  } else if (const auto installed = sources_in(set, options.installed_root / set.package_folder)) {
    sources = *installed;
    result.source = concat("package ", set.data.package, ", installed");
  } else {
    sources = download(set, scratch.path);
    result.source = concat("package ", set.data.package, ", downloaded");
  }

  const std::vector<FileContent> contents = set.make(sources);
  const fs::path made = make_folder(scratch.path / "made");
  std::vector<std::string> names;
  for (const auto& [file, content] : contents) {
    write_file_atomically(made / file, content, 0644);
    names.push_back(file);
  }
  const auto sums = sha256_of(made, names);
  std::string sums_file;
  for (const auto& [file, content] : contents) {
    result.files.push_back({file, content.size(), sums.at(file)});
    sums_file += concat(sums.at(file), "  ", file, '\n');
  }
  if (options.check) {
    compare(set, result.files, result.source);
  }
  write_file_atomically(made / kSumsFile, sums_file, 0644);
  install(contents, made, result.folder);
  return result;
}

} // namespace trireme::data
