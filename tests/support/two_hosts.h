#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::test {

/// Two network namespaces joined by a virtual cable: two hosts, as far as the network can tell. Gone with the object.
class TwoHosts {
 public:
  /// Why this machine cannot have them (no root, no iproute2), or nullopt.
  static std::optional<std::string> missing();

  TwoHosts();
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  /// Moves the calling process to host 0 or 1.
  void enter(int host) const;
  std::string address(int host) const;
  /// For `ip netns exec`.
  const std::string& name(int host) const { return names_[host]; }
  /// Bytes that have left this host over the cable, headers included.
  int64_t sent_bytes(int host) const;
  /// Limits both directions, as in "1gbit".
  void limit(const std::string& rate) const;
  /// Pulls the plug: packets are lost silently from now on.
  void cut() const;
  /// Switches the interface of both hosts off, which their systems notice.
  void unplug() const;

 private:
  std::string names_[2];
};

} // namespace trireme::test
