#pragma once

#include <trireme/comm/backend.h>
#include <trireme/comm/group_setup.h>

#include <optional>
#include <string>
#include <vector>

namespace trireme::comm {

/// One backend of this build.
struct BackendEntry {
  const char* name;
  const char* description;
  /// The kind of device whose tensors it moves; none: those of any device but the CPU.
  std::optional<at::DeviceType> device;
  /// False when this build, this machine or this process lacks what it needs.
  bool (*available)();
  /// False for groups that it cannot serve (ranks of other hosts); the same on every member.
  bool (*suits)(const GroupSetup&);
  /// Opens the group on this rank. Errors: Trouble or PeerError when a member does not come; Trouble on every member
  /// when one of them lacks what it needs.
  std::shared_ptr<Backend> (*connect)(const GroupSetup&);
  /// What to do if it is not available().
  const char* needs = "Use \"auto\".";
  /// Names a device among those of its host, for a backend that serves each of them to one rank only.
  std::string (*card)(at::Device) = nullptr;
};

/// Every backend of this build, in the order in which "auto" prefers them for groups of two and more.
const std::vector<BackendEntry>& backends();

/// The row of that name. Errors: InputError listing the names, or saying that it is not available here.
const BackendEntry& find_backend(const std::string& name);

/// What a member says of its choice for a device: "nccl 0000:65:00.0".
std::string announcement(const BackendEntry& choice, at::Device device);
/// Whether all members can use `choice`: whether each has announced it, and for a device that no other member has where
/// the backend serves each of them to one rank only. The same on every member that chose it. Errors: InputError naming
/// the ranks, where it is `required` (asked for by name).
bool suits_all(const BackendEntry& choice, bool required, const GroupSetup& setup,
               const std::vector<std::string>& announced);

} // namespace trireme::comm
