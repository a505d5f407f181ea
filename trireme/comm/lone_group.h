#pragma once

#include <trireme/comm/group.h>

#include <memory>
#include <string>

namespace trireme::comm {

/// A group of one that goes through a backend made for several: it opens, starts each collective and closes as a larger
/// one does. For checks on a machine with one GPU; elsewhere a group of one is "null". Needs no world, and no other
/// process knows of it. Its tensors are on one kind of device.
class LoneGroup {
 public:
  /// Errors: InputError for a backend that is not available; Trouble if it cannot open the device.
  LoneGroup(const std::string& backend, at::Device device);
  ~LoneGroup();
  LoneGroup(const LoneGroup&) = delete;
  LoneGroup& operator=(const LoneGroup&) = delete;

  const Group& group() const { return group_; }

 private:
  std::shared_ptr<Group::State> state_;
  Group group_;
};

} // namespace trireme::comm
