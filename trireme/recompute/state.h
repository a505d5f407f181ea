#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/Generator.h>

#include <utility>
#include <vector>

namespace trireme::recompute {

/// The state of the number generators of the CPU and of CUDA devices.
class RandomState {
 public:
  RandomState() = default;
  /// Reads the CPU's generator, those of the tensors' devices and the current CUDA device's, where there is one.
  static RandomState of(const std::vector<at::Tensor>& tensors);
  /// Reads the present state of the generators that this one has.
  RandomState present() const;
  void restore() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// While it lives the generators continue from another state; then from where they were.
class RandomGuard {
 public:
  explicit RandomGuard(const RandomState& state) : before_(state.present()) {
    state.restore();
  }
  ~RandomGuard() {
    before_.restore();
  }
  RandomGuard(const RandomGuard&) = delete;
  RandomGuard& operator=(const RandomGuard&) = delete;

 private:
  RandomState before_;
};

/// Whether and to what type autocast casts, per device type, and its cache.
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

/// While it lives autocast works as it did at another time. Casts cached meanwhile are forgotten.
class AutocastGuard {
 public:
  explicit AutocastGuard(const AutocastState& state);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastState before_;
};

/// Puts the values of module buffers back when it goes, whatever has changed them meanwhile.
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
