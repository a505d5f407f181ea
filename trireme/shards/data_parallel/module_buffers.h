#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::parallel {

/// Buffers of a module that are the same on the ranks of a group, or should be; each once.
///
/// Memory: a copy of them. A buffer that is registered or replaced later is not seen.
class ModuleBuffers {
 public:
  /// `buffers`: Module::buffers(), or some of them.
  ModuleBuffers(const std::vector<at::Tensor>& buffers, comm::Group group);

  /// Makes every rank's buffers those of `root`, with one broadcast for each type. Collective. A group of one, and a
  /// module without buffers, have nothing to do.
  void broadcast(int root = 0) const;
  bool empty() const {
    return kinds_.empty();
  }

 private:
  // Buffers of one type on one device.
  struct Kind {
    std::vector<at::Tensor> tensors;
    at::Tensor flat; // they travel in
  };

  comm::Group group_;
  std::vector<Kind> kinds_;
};

} // namespace trireme::parallel
