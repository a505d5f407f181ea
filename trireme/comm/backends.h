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
  /// Kind of device whose tensors it moves; none: any device but the CPU.
  std::optional<at::DeviceType> device;
  /// False if this build, machine or process lacks a requirement.
  bool (*available)();
  /// False for groups that it cannot serve, as with ranks of other hosts; the same on every member.
  bool (*suits)(const GroupSetup&);
  /// Opens the group on this rank. Errors: Trouble or PeerError when a member does not connect; Trouble on every member
  /// when one lacks a requirement.
  std::shared_ptr<Backend> (*connect)(const GroupSetup&);
  /// Advice if it is not available().
  const char* needs = "Use \"auto\".";
  /// Names a device uniquely on its host, for a backend that allows one rank per GPU.
  std::string (*card)(at::Device) = nullptr;
};

/// Every backend of this build, in the order in which "auto" prefers them for groups of two or more.
const std::vector<BackendEntry>& backends();

/// The row of that name. Errors: InputError listing the names, or if it is not available here.
const BackendEntry& find_backend(const std::string& name);

/// A member's announcement of its choice for a device: "nccl 0000:65:00.0".
std::string announcement(const BackendEntry& choice, at::Device device);
/// True if all members can use `choice`: each has announced it, and no two share a GPU if the backend allows one rank
/// per GPU. The same on every member that chose it. Errors: InputError naming the ranks, if it is `required` (requested
/// by name).
bool suits_all(const BackendEntry& choice, bool required, const GroupSetup& setup,
               const std::vector<std::string>& announced);

} // namespace trireme::comm
