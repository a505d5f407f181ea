#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace trireme::recompute {

/// The state of the random number generators of the CPU and of the GPUs.
class RandomState {
 public:
  RandomState() = default;
  /// Reads the generators of the CPU, of the tensors' devices and of the current GPU, if any.
  static RandomState of(const std::vector<at::Tensor>& tensors);
  /// Reads the current state of the same generators.
  RandomState present() const;
  void restore() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// Sets the generators to another state; the destructor restores their earlier state.
class RandomGuard {
 public:
  explicit RandomGuard(const RandomState& state) : before_(state.present()) { state.restore(); }
  ~RandomGuard() { before_.restore(); }
  RandomGuard(const RandomGuard&) = delete;
  RandomGuard& operator=(const RandomGuard&) = delete;

 private:
  RandomState before_;
};

/// Autocast's switch and type per kind of device, and its cache.
class AutocastState {
 public:
  AutocastState() = default;
  static AutocastState present();
  void restore() const;

 private:
  struct Entry {
    at::DeviceType device;
    bool enabled;
    at::ScalarType type;
  };
  std::vector<Entry> entries_;
  bool cache_ = true;
};

/// Sets autocast to an earlier state during its lifetime. Casts cached meanwhile are dropped.
class AutocastGuard {
 public:
  explicit AutocastGuard(const AutocastState& state);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastState before_;
};

/// Saves the values of module buffers; the destructor restores them.
class BufferGuard {
 public:
  explicit BufferGuard(const std::vector<at::Tensor>& buffers);
  ~BufferGuard();
  BufferGuard(const BufferGuard&) = delete;
  BufferGuard& operator=(const BufferGuard&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;
};

} // namespace trireme::recompute
