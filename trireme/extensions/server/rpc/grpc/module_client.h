#pragma once

#include <trireme/extensions/server/rpc/grpc/module_options.h>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>

namespace trireme::rpc::grpc {

/// A client within the module. Its thread sends the rest of long bodies, writes responses into their rooms and answers
/// pings.
class ModuleClient {
 public:
  using Clock = std::chrono::steady_clock;
  struct Call {
    uint64_t id = 0;
    std::string header;
    std::span<const std::byte> body;
    size_t sent = 0;
    bool begun = false;
    std::span<std::byte> room;
    size_t received = 0;
    uint64_t reply_bytes = 0;
    bool replying = false;
    bool done = false;
    std::string reply;
    /// The error that wait() has thrown; later calls throw it again.
    std::string failed;
  };

  /// Retries until the deadline. Errors: Failure.
  static std::shared_ptr<ModuleClient> connect(const Options& options, Clock::time_point deadline);

  std::shared_ptr<Call> call(std::string header, std::span<const std::byte> body, std::span<std::byte> room);
  /// Errors: Failure; the connection is then broken, and callers' memory is not accessed any more.
  const std::string& wait(Call& call, Clock::time_point deadline);
  bool wait_until(const Call& call, Clock::time_point time);
  bool done(const Call& call);
  int64_t sent() const { return sent_; }
  int64_t received() const { return received_; }
  /// Ends the connection: wait() fails from now on, and callers' memory is not accessed. The thread ends at once; if
  /// the server accepts no data, it ends when gRPC gives up the pending writes.
  void close();

 private:
  enum Step : intptr_t { kBegun = 1, kOpened, kRead, kWritten, kFinished };
  enum class Outcome { opened, again };

  explicit ModuleClient(const Options& options);

  bool tried(Clock::time_point deadline);
  [[noreturn]] void give_up();
  Outcome attempt(Clock::time_point deadline);
  std::string challenge(Clock::time_point deadline, ::grpc::Status& status);
  ::grpc::Status status_of_stream(Clock::time_point deadline);
  bool waited(Step step, Clock::time_point deadline);
  void drop_stream();
  [[noreturn]] void refuse(const std::string& happened, const std::string& next);
  void judge(const ::grpc::Status& status);

  void run();
  void received_one(bool ok);
  void take(const class FrameReader& reader);
  void send_part();
  void break_off(const std::string& why);

  const Settings settings_;
  std::shared_ptr<::grpc::Channel> channel_;
  std::unique_ptr<::grpc::GenericStub> stub_;
  std::unique_ptr<::grpc::CompletionQueue> queue_;
  std::unique_ptr<::grpc::ClientContext> context_;
  std::unique_ptr<::grpc::GenericClientAsyncReaderWriter> stream_;
  ::grpc::ByteBuffer incoming_;
  ::grpc::Status status_;
  std::string last_why_;
  std::thread thread_;
  std::atomic<int64_t> sent_{0};
  std::atomic<int64_t> received_{0};

  std::mutex mutex_;
  std::condition_variable news_;
  std::string broken_;
  bool writing_ = false;
  bool finishing_ = false;
  bool ended_ = false;
  uint64_t last_id_ = 0;
  std::deque<std::shared_ptr<Call>> outgoing_;
  std::unordered_map<uint64_t, std::shared_ptr<Call>> waiting_;
  /// The response whose further parts are still to arrive.
  std::shared_ptr<Call> arriving_;
};

} // namespace trireme::rpc::grpc
