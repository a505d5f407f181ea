#pragma once

#include <trireme/comm/store.h>

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme::comm {

class Backend;

/// Parameters with which a backend opens one group. Every member calls connect at the same time.
struct GroupSetup {
  std::string name;
  /// Visible to the members of this group only.
  Store store;
  int rank = 0;
  int size = 1;
  /// World rank of each member.
  std::vector<int> members;
  /// Number of the host that each member runs on: equal for members of one machine.
  std::vector<int> hosts;
  /// Address of this host under which the members of other hosts reach it.
  std::string address = "127.0.0.1";
  /// Longest duration of one operation.
  std::chrono::milliseconds timeout{60'000};
  /// Members that are opening the group respond to each other within this time.
  std::chrono::milliseconds patience{60'000};

  /// The device of the tensors to move; its number if known.
  c10::Device device = c10::kCPU;
  /// Opens another instance of the group's host backend, under its own keys: collective, once per suffix.
  std::function<std::shared_ptr<Backend>(const std::string& suffix)> connect_host = nullptr;

  bool one_host() const;
};

/// Sends `mine` to the other members under `key` and returns the messages of all, by rank. Use a key once per group.
/// Errors: Trouble when a member does not respond in time.
std::vector<std::string> exchange(GroupSetup& setup, const std::string& key, const std::string& mine);

} // namespace trireme::comm
