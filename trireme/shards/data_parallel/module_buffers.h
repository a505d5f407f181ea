#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::parallel {

/// Module buffers that a group's ranks keep equal; each buffer once.
///
/// Memory: a copy of them. Buffers that are registered or replaced later are not seen.
class ModuleBuffers {
 public:
  /// `buffers`: Module::buffers(), or some of them.
  ModuleBuffers(const std::vector<at::Tensor>& buffers, comm::Group group);

  /// Broadcasts the root's buffers, one broadcast per type. Collective. Does nothing for a group of one or without
  /// buffers.
  void broadcast(int root = 0) const;
  bool empty() const { return kinds_.empty(); }

 private:
  // Buffers of one type on one device.
  struct Kind {
    std::vector<at::Tensor> tensors;
    at::Tensor flat; // message for the broadcast
  };

  comm::Group group_;
  std::vector<Kind> kinds_;
};

} // namespace trireme::parallel
