#pragma once

#include <string>
#include <vector>

namespace trireme::device {

/// The cores that a list of Linux names, "0-2,8" is 0, 1, 2, 8; empty for what is no such list.
std::vector<int> cores_of_list(const std::string& list);

/// Lets this process run on the cores of the NUMA node alone that a PCI device is attached to: its threads, and those
/// to come. Memory of the host that the rank pins is then next to its GPU. Cores that the process may not use (its
/// affinity, a control group) stay out. Returns the cores, "0-2,8"; "" if nothing changed: the node has
/// all cores, none of those allowed, or the system does not tell (`devices`: /sys/bus/pci/devices).
std::string bind_near(const std::string& pci, const std::string& devices = "/sys/bus/pci/devices");

} // namespace trireme::device
