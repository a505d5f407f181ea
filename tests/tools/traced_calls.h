// What strace writes of a rank's calls to the system, and which of them another run can let fail.
#pragma once

#include <trireme/base/error.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace trireme::tools {

/// One call: the `number`-th by this name of its thread, of those about `file` where that is named, else of all.
struct TracedCall {
  std::string place; ///< the folder's name
  std::string call;
  std::string file;
  int number = 0;

  bool operator<(const TracedCall& other) const {
    return std::tie(place, call, file, number) < std::tie(other.place, other.call, other.file, other.number);
  }
  std::string text() const {
    return concat(call, " number ", number, " in ", place, file.empty() ? "" : " of " + file);
  }
  /// strace's options that let it fail, as words of a shell.
  std::string failing(const std::string& code) const {
    const std::string only = file.empty() ? "" : concat(" -P \"", file, "\" -P \"", file, " (deleted)\"");
    return concat("-e trace=", call, only, " -e inject=", call, ":error=", code, ":when=", number);
  }
};

/// All that open, make, change, read, move or remove files; with "?" those that not every processor's Linux has.
inline const std::string kFileCalls =
    "openat,?mkdir,mkdirat,fallocate,ftruncate,pread64,pwrite64,read,write,fsync,fdatasync,?rename,renameat2,?unlink,"
    "unlinkat,?rmdir,flock,ioctl";

/// The calls of a log (strace -f -y -o) that are about something in one of the folders. Those about files that a rank
/// keeps under names of its own, as "optimizer_states.0", are counted for each file by itself.
inline std::set<TracedCall> traced_calls(const std::filesystem::path& log,
                                         const std::vector<std::filesystem::path>& folders) {
  static const std::regex kKept(R"((/[^"<>]*/trireme[.a-z]*\.rank\d+/[a-z_]+\.\d+))");
  static const std::regex kLine(R"(^(\d+) +([a-z0-9_]+)\()");
  std::map<std::string, int> counted;
  std::set<TracedCall> found;
  std::ifstream in(log);
  for (std::string line; std::getline(in, line);) {
    std::smatch parts;
    if (!std::regex_search(line, parts, kLine)) {
      continue; // the rest of a call that another thread interrupted
    }
    TracedCall call{"", parts[2], "", 0};
    const std::string thread_and_call = parts.str();
    const int of_all = ++counted[thread_and_call];
    std::smatch kept;
    if (call.call != "ioctl" && std::regex_search(line, kept, kKept)) { // FICLONERANGE is about the other file
      call.file = kept[1];
    }
    call.number = call.file.empty() ? of_all : ++counted[thread_and_call + call.file];
    for (const std::filesystem::path& folder : folders) {
      if (line.find(folder.string()) != std::string::npos) {
        call.place = folder.filename().string();
      }
    }
    if (!call.place.empty()) {
      found.insert(call);
    }
  }
  return found;
}

/// The line of the first call that was made to fail; "": none was.
inline std::string first_injected(const std::filesystem::path& log) {
  std::ifstream in(log);
  for (std::string line; std::getline(in, line);) {
    if (line.find("(INJECTED)") != std::string::npos) {
      return line;
    }
  }
  return "";
}

} // namespace trireme::tools
