#pragma once

#include <trireme/data/fetch.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {

/// One file that a data set is made of: its name and what it holds.
using FileContent = std::pair<std::string, std::string>;

/// How one data set is found, made and recognised; fetch.h describes their content.
struct FetchSet {
  FetchableData data;
  /// The needed files; each may be there with the ".gz" left out.
  std::vector<std::string> sources;
  /// Where they lie in the package, relative to the root it is unpacked to.
  std::string package_folder;
  /// Reads the sources, in the order above, and returns the data set's files.
  std::vector<FileContent> (*make)(const std::vector<std::filesystem::path>& sources);
  /// The data set's files with their right sizes and hashes.
  std::vector<FetchedFile> known;
};

/// All of them, in the order in which they are shown.
const std::vector<FetchSet>& fetch_sets();

/// Writes one novel per block of an R database (see read_rdb), and the training and validation
/// parts. Names come from each novel's first line. Errors: InputError as read_rdb.
std::vector<FileContent> make_austen(const std::vector<std::filesystem::path>& sources);

} // namespace trireme::data
