#pragma once

#include <trireme/comm/backend.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace trireme::comm {

/// The backends of one group: one for tensors on the host, and one per kind of device. Every member opens a
/// device's backend at the same operation, with the first tensor on it or by Group::open(); a job on the CPU opens
/// none.
class Routes {
 public:
  /// Receives the first tensor's device: the backend serves that kind.
  using Open = std::function<std::shared_ptr<Backend>(at::Device)>;

  /// If `host` moves tensors of any device (a group of one), no other backend is used.
  explicit Routes(std::shared_ptr<Backend> host, std::map<at::DeviceType, Open> devices = {});

  Backend& host() const { return *host_; }
  /// True if there is a backend for such tensors, open or not.
  bool moves(at::DeviceType type) const { return type == at::kCPU || host_->moves(type) || devices_.count(type) != 0; }
  /// The backend for such tensors. Errors: those of opening it; Trouble once interrupted.
  Backend& of(at::Device device) { return device.is_cpu() || host_->moves(device.type()) ? *host_ : of_device(device); }
  /// The same if it is open, else null.
  const Backend* find(at::Device device) const;

  /// Bytes sent through all of them.
  int64_t bytes_sent() const;
  /// Makes every current and later wait throw Trouble. Any thread may call it.
  void interrupt();
  /// Idempotent.
  void close();

 private:
  Backend& of_device(at::Device device);
  void for_each_open(const std::function<void(Backend&)>& f) const;

  const std::shared_ptr<Backend> host_;
  std::map<at::DeviceType, Open> devices_;
  mutable std::mutex mutex_;
  std::map<at::DeviceType, std::shared_ptr<Backend>> open_;
  std::atomic<bool> interrupted_{false};
};

} // namespace trireme::comm
