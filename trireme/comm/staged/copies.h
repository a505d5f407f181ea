#pragma once

#include <trireme/comm/backend.h>
#include <trireme/device/host_buffer.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

namespace trireme::comm::staged {

/// Rows of equal length of a flat tensor; a piece is the same columns of each.
struct Rows {
  at::Tensor flat; ///< undefined: nothing is copied
  int64_t rows = 0;
  int64_t first = 0; ///< index of the first one in the host's buffer
};

/// Copies columns [begin, begin + count) of `rows`, of `columns` each, to a buffer of rows of `count`, or back, on the
/// current stream.
void copy_to_host(const Rows& rows, int64_t columns, int64_t begin, int64_t count, const at::Tensor& buffer);
void copy_back(const Rows& rows, int64_t columns, int64_t begin, int64_t count, const at::Tensor& buffer);

/// State shared by the operations of one staged backend. Lives until the last of them is gone.
struct Shared {
  Shared(std::shared_ptr<Backend> host, at::DeviceType type)
      : host(std::move(host)), pool(std::make_shared<device::HostPool>(type)) {}

  /// Waits until the device has reached the mark. Errors: Trouble once interrupted.
  void await(const device::Event& event) const;
  /// A buffer of a size that fits several tensors.
  std::shared_ptr<device::HostBuffer> take(int64_t bytes) const;

  const std::shared_ptr<Backend> host;
  const std::shared_ptr<device::HostPool> pool;
  device::KeptStreams to_host;
  device::KeptStreams to_device;
  std::atomic<bool> interrupted{false};
};

/// The device's progress in one operation, for the watch.
class Course : public DeviceMark {
 public:
  explicit Course(at::Device device) : device_(device), end_(device.type()) {}

  void step() { ++steps_; }
  /// All of it is launched: it ends at the stream's current position.
  void end(const c10::Stream& stream) {
    end_.record(stream);
    end();
  }
  /// Nothing of it is left on the device.
  void end() { launched_ = true; }
  const device::Event& event() const { return end_; }
  bool finished() override;
  int64_t steps() const override { return steps_; }

 private:
  const at::Device device_;
  device::Event end_;
  std::atomic<bool> launched_{false};
  std::atomic<int64_t> steps_{0};
};

/// One collective: pieces are copied to the host, sent by the host's backend and copied back.
class Collective {
 public:
  /// The host's operation on a piece: `in` and `out` are the buffers, [rows * count] each, the same one unless `apart`.
  struct Steps {
    Rows in;
    Rows out;
    int64_t columns = 0;
    int64_t buffer_rows = 1;
    bool apart = false;
    std::function<std::shared_ptr<Pending>(const at::Tensor& out, const at::Tensor& in)> on_host = nullptr;
  };

  /// Marks the calling thread's current stream: work on it comes first. `piece` columns are sent at once.
  Collective(std::shared_ptr<Shared> shared, at::Device device, at::ScalarType type, Steps steps, int64_t piece);

  bool all_launched() const { return launched_ == pieces(); }
  /// Launches the copy of the next piece to the host.
  void launch();
  /// Waits for the oldest launched piece to be on the host and begins the host's operation on it.
  void begin();
  /// Waits for the oldest operation that was begun and launches the copy back. Errors: as of the host's backend.
  void finish();
  /// Marks the end of the copies back and releases the tensors.
  void end();

  int64_t pieces() const;
  at::Device device() const { return device_; }
  /// Makes the calling thread's current stream wait for the results.
  void order_current_stream() const;
  bool done() const { return course_->event().done(); }
  const std::shared_ptr<Course>& course() const { return course_; }

 private:
  struct Piece {
    int64_t begin = 0;
    int64_t count = 0;
    std::shared_ptr<device::HostBuffer> in;
    std::shared_ptr<device::HostBuffer> out;
    at::Tensor in_buffer;
    at::Tensor out_buffer;
    std::shared_ptr<device::Event> arrived;
    std::shared_ptr<Pending> pending;
  };

  std::shared_ptr<Shared> shared_;
  at::Device device_;
  at::ScalarType type_;
  Steps steps_;
  int64_t piece_;
  device::Event ready_;
  std::shared_ptr<Course> course_;
  int64_t launched_ = 0;
  int64_t begun_ = 0;
  int64_t done_ = 0;
  std::vector<Piece> under_way_; // those launched and not finished
};

/// One incoming message: the host's receives are posted at once, and the waiting thread launches the copies.
class Receive : public Pending {
 public:
  Receive(std::shared_ptr<Shared> shared, const at::Tensor& tensor, int from, int tag, int64_t piece);
  ~Receive() override;
  void wait() override;
  bool done() override;
  /// None until something is launched: before that it waits on the host, for as long as no thread waits for it.
  std::shared_ptr<DeviceMark> mark() override { return launched_ ? course_ : nullptr; }

 private:
  struct Piece {
    int64_t begin = 0;
    int64_t count = 0;
    std::shared_ptr<device::HostBuffer> loan;
    at::Tensor buffer;
    std::shared_ptr<Pending> pending;
  };
  /// Launches the copies of arrived pieces.
  void copy_arrived();

  std::shared_ptr<Shared> shared_;
  at::Tensor flat_;
  at::Device device_;
  device::Event ready_;
  std::shared_ptr<Course> course_;
  std::vector<Piece> pieces_;
  bool launched_ = false;
};

/// One outgoing message: copies are launched at once, post() passes copied pieces to the host's backend.
class Send {
 public:
  Send(std::shared_ptr<Shared> shared, const at::Tensor& tensor, int64_t piece);
  /// Waits for the copies and begins the host's sends, on a thread of the backend.
  void post(int to, int tag);
  /// Waits for the host's sends, and makes the current stream wait for the copies, so that it may overwrite the tensor.
  /// Only after post().
  void wait();
  bool done() const;
  const std::shared_ptr<Course>& course() const { return course_; }

 private:
  struct Piece {
    std::shared_ptr<device::HostBuffer> loan;
    at::Tensor buffer;
    std::shared_ptr<device::Event> arrived;
    std::shared_ptr<Pending> pending;
  };
  std::shared_ptr<Shared> shared_;
  at::Tensor flat_;
  at::Device device_;
  std::shared_ptr<Course> course_;
  std::shared_ptr<device::Event> copied_; // the last piece
  std::vector<Piece> pieces_;
};

} // namespace trireme::comm::staged
