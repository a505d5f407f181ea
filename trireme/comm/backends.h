#pragma once

#include <trireme/comm/backend.h>
#include <trireme/comm/store.h>

#include <chrono>
#include <string>
#include <vector>

namespace trireme::comm {

/// What a backend gets to open one group. Every member calls connect at the same time.
struct GroupSetup {
  std::string name;
  /// Seen by the members of this group only.
  Store store;
  int rank = 0;
  int size = 1;
  /// World rank of each member.
  std::vector<int> members;
  /// All members run on this host.
  bool one_host = true;
  /// Address of this host under which the members of other hosts reach it.
  std::string address = "127.0.0.1";
  /// A single operation may take this long.
  std::chrono::milliseconds timeout{60'000};
};

/// One row a backend.
struct BackendEntry {
  const char* name;
  const char* description;
  /// False when this build or this machine lacks what it needs.
  bool (*available)();
  /// False for groups that it cannot serve (ranks of other hosts); the same on every member.
  bool (*suits)(const GroupSetup&);
  /// Opens the group on this rank. Errors: Trouble or PeerError when a member does not come.
  std::shared_ptr<Backend> (*connect)(const GroupSetup&);
  /// What to do about it where it is not available().
  const char* needs = "Use \"auto\".";
};

/// Every backend of this build, in the order in which "auto" prefers them for groups of two and more.
const std::vector<BackendEntry>& backends();

/// The row of that name. Errors: InputError listing the names, or saying that it is not available here.
const BackendEntry& find_backend(const std::string& name);

} // namespace trireme::comm
