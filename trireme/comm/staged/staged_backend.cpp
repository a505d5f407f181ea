#include <trireme/comm/staged/staged_backend.h>

#include <trireme/comm/hierarchy/task_thread.h>
#include <trireme/comm/staged/copies.h>
#include <trireme/comm/staged/message_thread.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace trireme::comm {
namespace {

using staged::Copies;
using staged::empty_pinned;
using staged::MessageThread;

/// A piece of a collective: columns [begin, begin + numel) of the tensors seen as [parts, numel of one part].
struct Piece {
  int64_t begin;
  int64_t numel;
};

std::vector<Piece> pieces_of(int64_t part_numel, int64_t piece_numel) {
  std::vector<Piece> pieces;
  for (int64_t begin = 0; begin < part_numel; begin += piece_numel) {
    pieces.push_back({begin, std::min(piece_numel, part_numel - begin)});
  }
  return pieces;
}

at::Tensor columns(const at::Tensor& tensor, int64_t parts, const Piece& piece) {
  return tensor.detach().view({parts, -1}).narrow(1, piece.begin, piece.numel);
}

class StagedBackend : public Backend {
 public:
  StagedBackend(std::shared_ptr<Backend> collectives, std::shared_ptr<Backend> messages, std::chrono::milliseconds timeout, int64_t piece_bytes)
      : collectives_(std::move(collectives)), messages_(std::move(messages)), piece_bytes_(piece_bytes),
        tasks_(std::make_unique<TaskThread>([host = collectives_] { host->interrupt(); }, "staged")),
        carrier_(std::make_unique<MessageThread>(messages_, timeout)) {}
  ~StagedBackend() override {
    StagedBackend::close();
  }

  const char* name() const override {
    return "staged";
  }
  int rank() const override {
    return collectives_->rank();
  }
  int size() const override {
    return collectives_->size();
  }
  bool moves(at::DeviceType type) const override {
    return type != at::kCPU && type != at::kMeta;
  }

  std::shared_ptr<Pending> all_reduce(at::Tensor tensor, ReduceOp op) override {
    return collective(tensor, 1, tensor, 1, [op](Backend& host, const at::Tensor& out, const at::Tensor& in) {
      auto work = host.all_reduce(in, op);
      return std::pair(std::move(work), in.view(out.sizes()));
    });
  }
  std::shared_ptr<Pending> reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    return collective(out, 1, in, size(), [op](Backend& host, const at::Tensor& part, const at::Tensor& whole) {
      return std::pair(host.reduce_scatter(part, whole, op), part);
    });
  }
  std::shared_ptr<Pending> all_gather(at::Tensor out, at::Tensor in) override {
    return collective(out, size(), in, 1, [](Backend& host, const at::Tensor& whole, const at::Tensor& part) {
      return std::pair(host.all_gather(whole, part), whole);
    });
  }
  std::shared_ptr<Pending> broadcast(at::Tensor tensor, int root) override {
    return collective(tensor, 1, rank() == root ? tensor : at::Tensor(), 1, [root](Backend& host, const at::Tensor& out, const at::Tensor& in) {
      const at::Tensor& buffer = in.defined() ? in : out;
      auto work = host.broadcast(buffer, root);
      return std::pair(std::move(work), in.defined() ? at::Tensor() : out); // the root has it
    });
  }
  std::shared_ptr<Pending> all_to_all(at::Tensor out, at::Tensor in) override {
    return collective(out, size(), in, size(), [](Backend& host, const at::Tensor& received, const at::Tensor& sent) {
      return std::pair(host.all_to_all(received, sent), received);
    });
  }
  std::shared_ptr<Pending> send(at::Tensor tensor, int to, int tag) override {
    check_open();
    return carrier_->send(copies(tensor.device()), tensor.detach(), to, tag);
  }
  std::shared_ptr<Pending> recv(at::Tensor tensor, int from, int tag) override {
    check_open();
    return carrier_->recv(copies(tensor.device()), tensor.detach(), from, tag);
  }
  std::shared_ptr<Pending> barrier() override {
    check_open();
    return tasks_->run([host = collectives_] {
      if (const auto work = host->barrier()) {
        work->wait();
      }
    });
  }

  int64_t bytes_sent() const override {
    return collectives_->bytes_sent() + messages_->bytes_sent();
  }
  void interrupt() override {
    collectives_->interrupt();
    messages_->interrupt();
  }
  void close() override {
    if (!tasks_) {
      return;
    }
    collectives_->close();
    messages_->close();
    tasks_.reset();
    carrier_.reset();
  }

 private:
  /// Waits for the thread, then makes the current stream wait for the copy back.
  class Arrival : public Pending {
   public:
    Arrival(at::Device device, std::shared_ptr<Pending> task, std::shared_ptr<c10::Event> arrived)
        : device_(device), task_(std::move(task)), arrived_(std::move(arrived)), exceptions_at_start_(std::uncaught_exceptions()) {}
    ~Arrival() override {
      try {
        if (std::uncaught_exceptions() == exceptions_at_start_) {
          Arrival::wait(); // whatever uses the tensor from now on does so after this
        }
      } catch (...) {
        // No caller is left for the error.
      }
    }
    void wait() override {
      if (!waited_) {
        task_->wait();
        arrived_->block(device::current_stream(device_));
        waited_ = true;
      }
    }
    bool done() override {
      return waited_ || (task_->done() && arrived_->query());
    }

   private:
    at::Device device_;
    std::shared_ptr<Pending> task_;
    std::shared_ptr<c10::Event> arrived_;
    const int exceptions_at_start_;
    bool waited_ = false;
  };

  void check_open() const {
    if (!tasks_) {
      throw Trouble(Trouble::Kind::lost, "the group is closed");
    }
  }

  const Copies& copies(at::Device device) {
    return copies_.try_emplace(device.index(), device).first->second;
  }

  /// `in` (undefined: this rank sends nothing) has `in_parts` parts of equal size, `out` `out_parts`. `start` begins the host's operation on
  /// a piece and says what of it goes back to the GPU.
  template <typename Start>
  std::shared_ptr<Pending> collective(const at::Tensor& out, int64_t out_parts, const at::Tensor& in, int64_t in_parts, const Start& start) {
    check_open();
    const at::Device device = out.device();
    const Copies& streams = copies(device);
    const int64_t part = out.numel() / out_parts;
    const int64_t widest = static_cast<int64_t>(out.element_size()) * std::max(out_parts, in_parts);
    const std::vector<Piece> pieces = pieces_of(part, std::max<int64_t>(1, piece_bytes_ / widest));
    streams.begin(out);
    auto sent = std::make_shared<std::vector<std::pair<at::Tensor, c10::Event>>>();
    if (in.defined()) {
      streams.begin(in);
      for (const Piece& piece : pieces) {
        sent->push_back(streams.to_host(columns(in, in_parts, piece)));
      }
    }
    auto arrived = std::make_shared<c10::Event>(device.type());
    auto task = tasks_->run([host = collectives_, streams, pieces, sent, start, arrived, out, out_parts, keep = in, type = out.scalar_type()] {
      for (size_t i = 0; i < pieces.size(); ++i) {
        at::Tensor from;
        if (!sent->empty()) {
          (*sent)[i].second.synchronize();
          from = std::move((*sent)[i].first);
        }
        const at::Tensor to = from.defined() && out_parts * pieces[i].numel == from.numel() && keep.is_same(out) ? from : empty_pinned({out_parts, pieces[i].numel}, type);
        const auto [work, back] = start(*host, to, from);
        if (work) {
          work->wait();
        }
        if (back.defined()) {
          streams.to_device(columns(out, out_parts, pieces[i]), back);
        }
      }
      arrived->record(streams.up);
    });
    return std::make_shared<Arrival>(device, std::move(task), std::move(arrived));
  }

  const std::shared_ptr<Backend> collectives_;
  const std::shared_ptr<Backend> messages_;
  const int64_t piece_bytes_;
  std::map<c10::DeviceIndex, Copies> copies_;
  std::unique_ptr<TaskThread> tasks_;
  std::unique_ptr<MessageThread> carrier_;
};

} // namespace

std::shared_ptr<Backend> make_staged_backend(std::shared_ptr<Backend> collectives, std::shared_ptr<Backend> messages, std::chrono::milliseconds timeout,
                                             int64_t piece_bytes) {
  return std::make_shared<StagedBackend>(std::move(collectives), std::move(messages), timeout, piece_bytes);
}

std::shared_ptr<Backend> connect_staged(const GroupSetup& setup) {
  auto collectives = setup.connect_host("collectives");
  auto messages = setup.connect_host("messages");
  return make_staged_backend(std::move(collectives), std::move(messages), setup.timeout);
}

} // namespace trireme::comm
