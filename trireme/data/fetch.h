#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::data {

/// A data set that `fetch` knows.
struct FetchableData {
  std::string name;
  /// The Debian (and Ubuntu) package that contains it.
  std::string package;
  std::string about;
};

struct FetchOptions {
  /// Source of the data set: the package's .deb, the folder it was unpacked to, a folder with the files themselves, or
  /// for austen the Rdata.rdb. Empty: the installed package if there is one, else `apt-get download` (no root, nothing
  /// is installed).
  std::filesystem::path from;
  /// Compares every file with its known SHA-256.
  bool check = true;
  /// Root folder of installed packages.
  std::filesystem::path installed_root = "/";
};

struct FetchedFile {
  std::string name;
  uint64_t bytes = 0;
  std::string sha256;
};

struct FetchResult {
  std::filesystem::path folder;
  /// The data set was complete and correct; nothing was done.
  bool already_there = false;
  /// "package r-cran-janeaustenr, downloaded" or another source of the data.
  std::string source;
  std::vector<FetchedFile> files;
};

/// Puts data set `name` into the folder `destination`/`name` and verifies it.
///
/// austen: the six novels of Jane Austen, one UTF-8 file each (lines end in "\n").
///   The file train.txt has the first nine tenths of every novel, validation.txt the last tenths. The cut is between
///   paragraphs: both have all six styles, and no sentence is in both. The same bytes as little-endian uint16 tokens
///   (vocabulary 256), for the `tokens` data set, are in train.bin and validation.bin.
///
/// fashion-mnist: the four IDX files of Zalando's Fashion-MNIST, unpacked (28x28 uint8, 10 classes, 60000 for training
///   and 10000 for tests).
///
/// Files appear atomically: they are made in a hidden folder and renamed. Other files in the same folder are kept.
/// Check the files with `sha256sum --check SHA256SUMS`.
///
/// Cost: 1.6 MB of download and 16 MB of disk for austen, 31 MB and 55 MB for fashion-mnist.
///
/// Errors: InputError for an unknown name, a `from` without the data, damaged content, or content with another SHA-256.
/// Error if the package cannot be downloaded or a file cannot be written.
FetchResult fetch(const std::string& name, const std::filesystem::path& destination, const FetchOptions& options = {});

} // namespace trireme::data
