#pragma once

#include <trireme/device/host_buffer.h>
#include <trireme/memory/activations/file_space.h>
#include <trireme/memory/activations/ledger.h>
#include <trireme/memory/aio/transfers.h>

#include <c10/core/Storage.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace trireme::activations {

enum class Place { host, nvme };

class Away;

/// Moves storages to the host or to files and back, asynchronously.
///
/// On a device, copies run on two streams, one per direction, after the work on the thread's current stream; the host
/// does not wait. A source keeps its memory until the computing stream waits for its copy. That happens when more than
/// set_most_leaving() bytes are being moved out. If it is called back before, this costs nothing. Files are transferred
/// by aio: from and to pinned memory for a device; on the CPU a storage is copied into a buffer that is written, and
/// read into a buffer that becomes its memory. Thread-safe; threads of one device must use the same current stream.
class Mover : public std::enable_shared_from_this<Mover> {
 public:
  /// Empty `nvme_path`: no files.
  Mover(at::Device device, std::shared_ptr<Ledger> ledger, const std::string& nvme_path, const aio::Options& options);
  ~Mover();

  /// Starts to move a copy out. The bytes must not change until it is complete. `foreign`: the memory may belong to
  /// another stream than the current one, e.g. received from other ranks or from the host.
  std::shared_ptr<Away> leave(const c10::Storage& storage, Place place, bool foreign = false);
  /// Starts to move it back, unless that was started.
  void call_back(Away& away);
  /// Its bytes, ready for the current stream.
  c10::Storage wait_for(Away& away);
  /// Limits the bytes being moved out at a time, though at least one storage moves. On the CPU it is also half the
  /// limit of the buffers' bytes, spare ones included.
  void set_most_leaving(int64_t bytes);

  at::Device device() const { return device_; }
  int64_t bytes_out() const;
  int64_t bytes_in() const;
  /// The file space; null without files.
  const std::shared_ptr<FileSpace>& files() const { return files_; }

 private:
  friend class Away;
  using Lock = std::unique_lock<std::mutex>;

  void advance();
  void free_original(Away& away);
  void begin_to_bring(Away& away);
  void write(Away& away);
  void finish_write(Away& away);
  void copy_in(Away& away);
  void forget(Away& away) noexcept;
  aio::Transfers& transfers();

  const at::Device device_;
  const std::shared_ptr<Ledger> ledger_;
  const std::shared_ptr<device::HostPool> buffers_;
  const std::shared_ptr<FileSpace> files_;
  const aio::Options options_;
  mutable std::mutex mutex_;
  device::KeptStreams out_;
  device::KeptStreams in_;
  std::unique_ptr<aio::Transfers> transfers_;
  std::deque<Away*> leaving_; // oldest first: on a device with their memory, on the CPU not known to be written
  std::deque<Away*> writing_; // on a device: copied, not known to be written
  std::deque<Away*> coming_;  // to a device: read, not copied
  int64_t leaving_bytes_ = 0;
  int64_t most_leaving_ = 0;
  int64_t bytes_out_ = 0;
  int64_t bytes_in_ = 0;
};

/// A storage that was moved out, or back.
class Away {
 public:
  Away(std::shared_ptr<Mover> mover, Place place, int64_t bytes, at::Device device)
      : mover_(std::move(mover)),
        place_(place),
        bytes_(bytes),
        device_(device),
        copied_(std::make_shared<device::Event>(device.type())),
        arrived_(std::make_shared<device::Event>(device.type())) {}
  ~Away() { mover_->forget(*this); }
  Away(const Away&) = delete;
  Away& operator=(const Away&) = delete;

  int64_t bytes() const { return bytes_; }

 private:
  friend class Mover;
  const std::shared_ptr<Mover> mover_;
  const Place place_;
  const int64_t bytes_;
  const at::Device device_;
  c10::Storage original_;                       // on a device, until the copy is waited for
  const std::shared_ptr<device::Event> copied_; // to the host
  std::shared_ptr<device::HostBuffer> buffer_;  // on the host, until it is in the file
  std::shared_ptr<const FileSpace::Extent> piece_;
  std::optional<aio::Transfers::Id> write_;
  std::optional<aio::Transfers::Id> read_;
  bool called_ = false;
  const std::shared_ptr<device::Event> arrived_; // on the device
  c10::Storage back_;
  bool counted_back_ = false; // in the ledger
};

} // namespace trireme::activations
