#pragma once

#include <trireme/data/fetch.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {

/// One file of a data set: name and content.
using FileContent = std::pair<std::string, std::string>;

/// How to find, make and verify one data set; fetch.h describes their content.
struct FetchSet {
  FetchableData data;
  /// The needed files; each may also exist without its ".gz".
  std::vector<std::string> sources;
  /// Their folder in the package, relative to the root it is unpacked to.
  std::string package_folder;
  /// Reads the sources, in the order above, and returns the data set's files.
  std::vector<FileContent> (*make)(const std::vector<std::filesystem::path>& sources);
  /// The data set's files with their correct sizes and hashes.
  std::vector<FetchedFile> known;
};

/// All data sets, in the order of their listing.
const std::vector<FetchSet>& fetch_sets();

/// Writes one novel per block of an R database (see read_rdb), and the training and validation
/// parts. Names come from each novel's first line. Errors: InputError as read_rdb.
std::vector<FileContent> make_austen(const std::vector<std::filesystem::path>& sources);

} // namespace trireme::data
