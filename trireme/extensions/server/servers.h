#pragma once

#include <trireme/extensions/server/pieces.h>
#include <trireme/extensions/server/rpc/rpc.h>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::parallel::server {

/// What a worker knows of its job.
struct WorkerOptions {
  std::vector<std::string> addresses; ///< of all servers, in their order
  rpc::Access access;
  int worker = 0;
  int workers = 1;
  bool restarted = false; ///< the process that was this worker before has ended: goes on where the others are
  /// How long a worker waits for a server that has ended to come back.
  std::chrono::milliseconds patience{60'000};
};

/// The parameter servers as one worker sees them: what it sends is cut into the servers' shares, and their answers are
/// put together. One request to each server is on its way at a time.
///
/// Tensors are given as functions of a parameter's number, may be on any device, and need not be contiguous. A server
/// that ends is connected to again until `patience` is over; what it has forgotten is said in a warning. Of sparse
/// parameters (ParameterInfo::sparse) the rows travel whose gradient is not 0, and those come back that some worker has
/// changed since this worker took values last: its values are those of the servers at any time, as with all rows. Cost
/// for P bytes of parameters: P sent and P received in a step, copied once each way; nothing travels to servers of the
/// same host (shared memory). Sparse parameters: their gradients are read once more, and a row has 8 bytes more.
class Servers {
 public:
  using TensorOf = std::function<at::Tensor(int64_t parameter)>; ///< undefined: no gradient

  /// Connects and joins. `optimizer`: a configuration's "optimizer" as JSON. Errors: InputError for what a server
  /// refuses, PeerError.
  Servers(WorkerOptions options, std::vector<ParameterInfo> parameters, nlohmann::json optimizer);
  ~Servers();
  Servers(const Servers&) = delete;
  Servers& operator=(const Servers&) = delete;

  const std::vector<ParameterInfo>& parameters() const {
    return parameters_;
  }
  bool initialized() const;
  /// Gives the first values, where a server has none.
  void initialize(const TensorOf& values);
  /// Takes the values as soon as there are some.
  void pull(const TensorOf& values);

  /// Gradients of one step of all workers: sends them, and returns when it is decided whose count, with their mean
  /// loss, the squared norm of their sum, and whether one of them asks to stop. For all but one worker that is after
  /// the step, when the values are here.
  struct Sum {
    bool stale = false; ///< they came too late and do not count
    int64_t members = 1;
    double loss = 0;
    double squared_norm = 0;
    bool stop = false;
  };
  Sum push(const TensorOf& gradients, double loss, bool stop);
  /// How the servers step.
  struct Step {
    double lr = 0;
    std::optional<std::pair<double, double>> betas;
    std::optional<double> factor; ///< of the sum; absent: the step is skipped
  };
  /// Ends a step of all workers by what all of them say alike, which one of them sends, and takes the values.
  void commit(const Step& step, const TensorOf& values);
  /// A step by this worker's gradients alone, and takes the values.
  void push_pull(const TensorOf& gradients, double loss, const Step& step, const TensorOf& values);

  /// A checkpoint that this worker has read: what names it on all workers alike, the training's step, the optimizer's.
  struct Loaded {
    std::string id;
    int64_t step = 0;
    int64_t optimizer_steps = 0;
  };
  /// Calls f(array name, parameter, first element, values) for each piece of the optimizer's arrays, fp32, fetched from
  /// the servers.
  using OfArray = std::function<void(const std::string& array, int64_t parameter, int64_t begin, at::Tensor values)>;
  void for_each_array(const OfArray& f);
  /// Says that this worker has loaded a checkpoint, gives the servers its values, arrays (f fills them) and steps where
  /// they ask this worker for them, and takes their values. Returns when all servers have it: before it pushes
  /// anything. A worker that was started again takes what the others have made of it, whatever it has loaded. Cost: P
  /// sent by one worker, and P received. Errors: InputError where the others have loaded another one, or have trained
  /// without; PeerError, Error. Returns whether it was this checkpoint.
  bool load(const Loaded& loaded, const TensorOf& values, const OfArray& f);
  /// Loads that this worker's values have seen; absent where not all servers' have seen the same.
  std::optional<int64_t> loads() const;
  /// The step of the training that a worker which begins now has behind it, as the first server said last.
  int64_t step() const {
    return step_;
  }

  /// Steps of the servers' optimizers, as they said last.
  int64_t steps() const {
    return steps_;
  }
  /// Updates of the first server, as it said last.
  int64_t clock() const;
  /// The worker with the lowest number of those that are there or awaited, as the first server said last.
  int first_worker() const {
    return first_worker_;
  }
  void leave();
  int64_t bytes_sent() const;
  int64_t bytes_received() const;

 private:
  struct Connection;

  static std::shared_ptr<std::byte[]> shareable(size_t bytes);
  void connect(Connection& server);
  nlohmann::json ask(Connection& server, const nlohmann::json& header, std::span<const std::byte> body = {},
                     std::span<std::byte> room = {});
  void send(Connection& server, const nlohmann::json& header, std::span<const std::byte> body = {},
            std::span<std::byte> room = {});
  nlohmann::json receive(Connection& server);
  nlohmann::json receive(Connection& server, const std::shared_ptr<rpc::Call>& call);
  void send_push(Connection& server);
  void take_answer(Connection& server);
  bool may_count(const Connection& server) const;
  void tell_members(Connection& server, bool has_waited);
  void await_answers(bool tells_at_once);
  void gather_piece(Connection& server, const RowRange& piece, const at::Tensor& whole) const;
  void gather_values(Connection& server, const TensorOf& values) const;
  void gather_gradients(const TensorOf& gradients);
  void gather_rows(Connection& server, const TensorOf& gradients, std::vector<int64_t>& rows_of);
  void scatter(Connection& server, const nlohmann::json& reply, const TensorOf& tensors) const;
  /// Sends a request that is answered with values; take_values() takes them.
  void ask_for_values(Connection& server, nlohmann::json header, std::span<const std::byte> body = {});
  /// The same, and pulls where the server has ended: values of its clock, or of this one of the first server.
  void take_or_pull(Connection& server, const TensorOf& values, std::optional<int64_t> first_clock = std::nullopt);
  void catch_up(const TensorOf& values);
  nlohmann::json tell_load(Connection& server, const Loaded& loaded, const std::string& id, const TensorOf& values,
                           const OfArray& f);
  void begins_to_train();
  void take_values(Connection& server, const TensorOf& values);
  void visit_arrays(const Connection& server, std::byte* memory, const OfArray& f) const;
  nlohmann::json push_header(const Connection& server) const;
  /// The server has ended: connects when it is back, and calls go_on(its clock before), and all that again where the
  /// server ends meanwhile, until `patience` is over.
  void connect_again(Connection& server, const std::function<void(int64_t of_step)>& go_on);
  nlohmann::json commit_header(const Step& step) const;
  void take_step(Connection& server, const TensorOf& values);
  bool lacks_step(const Connection& server) const;
  void say_lost(const Connection& server, int64_t before) const;

  WorkerOptions options_;
  std::vector<ParameterInfo> parameters_;
  nlohmann::json optimizer_;
  std::vector<std::unique_ptr<Connection>> servers_;
  std::vector<int64_t> unused_; // of the gradients under way
  double loss_ = 0;
  bool stop_ = false;
  std::vector<int> members_; // of the present step; none: this worker's gradients came too late
  double squared_norm_ = 0;  // of their sum
  bool hybrid_ = false;
  int64_t steps_ = 0;
  int64_t step_ = 0;
  std::optional<int64_t> loads_; // that this worker has seen, from its first load or step on
  int first_worker_ = 0;
  bool said_dense_ = false; // that a sparse parameter has a gradient in all rows
  int64_t sent_before_ = 0; // over connections that are no more
  int64_t received_before_ = 0;
};

} // namespace trireme::parallel::server
