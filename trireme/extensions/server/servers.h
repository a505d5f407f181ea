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

/// A worker's part of the job's description.
struct WorkerOptions {
  std::vector<std::string> addresses; ///< of all servers, in their order
  rpc::Access access;
  int worker = 0;
  int workers = 1;
  bool restarted = false; ///< an earlier process was this worker: continue where the other workers are
  /// How long a worker waits for a server that has ended to be restarted.
  std::chrono::milliseconds patience{60'000};
};

/// All parameter servers, as one worker uses them. It cuts requests into the servers' shares and joins their responses.
/// One request per server is in flight at a time.
///
/// Tensors are passed as functions of a parameter's index, may be on any device, and need not be contiguous. If a
/// server ends, the worker reconnects until `patience` is over, and warns of lost updates.
///
/// Sparse parameters (ParameterInfo::sparse) send the rows whose gradient is not 0, and receive the rows that have
/// changed since this worker's last values. The worker's values therefore equal the servers', as with all rows.
///
/// Cost of a step for P bytes of parameters: P sent and P received, each copied once. Servers on the same host use
/// shared memory: nothing is sent. Sparse parameters: their gradients are read once more, and a row takes 8 bytes more.
class Servers {
 public:
  using TensorOf = std::function<at::Tensor(int64_t parameter)>; ///< undefined: no gradient

  /// Connects and joins. `optimizer`: a configuration's "optimizer" as JSON. Errors: InputError if a server refuses,
  /// PeerError.
  Servers(WorkerOptions options, std::vector<ParameterInfo> parameters, nlohmann::json optimizer);
  ~Servers();
  Servers(const Servers&) = delete;
  Servers& operator=(const Servers&) = delete;

  const std::vector<ParameterInfo>& parameters() const { return parameters_; }
  bool initialized() const;
  /// Sends initial values to servers that have none.
  void initialize(const TensorOf& values);
  /// Receives the values; waits until the servers have some.
  void pull(const TensorOf& values);

  /// Pushes the gradients of a synchronous step. Returns when the members of the step are decided: their mean loss, the
  /// squared norm of their sum, and whether one of them asks to stop. Only the committer gets this before the step; the
  /// other workers get it after the step, with the values.
  struct Sum {
    bool stale = false; ///< the gradients came too late and do not count
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
    std::optional<double> factor; ///< multiplies the sum; absent: the step is skipped
  };
  /// Ends a synchronous step and receives the values. All workers pass the same `step`; one of them sends it.
  void commit(const Step& step, const TensorOf& values);
  /// Steps by this worker's gradients alone and receives the values.
  void push_pull(const TensorOf& gradients, double loss, const Step& step, const TensorOf& values);

  /// A checkpoint that this worker has read: its id, equal on all workers, and the steps of training and optimizer.
  struct Loaded {
    std::string id;
    int64_t step = 0;
    int64_t optimizer_steps = 0;
  };
  /// Calls f(array name, parameter, first element, values) for each piece of the optimizer's arrays, fetched as fp32.
  using OfArray = std::function<void(const std::string& array, int64_t parameter, int64_t begin, at::Tensor values)>;
  void for_each_array(const OfArray& f);
  /// Announces that this worker has loaded a checkpoint; call it before the next push. Sends values, arrays (filled by
  /// f) and steps to the servers that ask for them. Returns when all servers have the checkpoint, with their values.
  /// True: it was this checkpoint; false: a restarted worker got the values that the others have trained, whatever it
  /// has loaded.
  ///
  /// Cost: one worker sends P, each receives P. Errors: InputError if other workers have loaded another checkpoint or
  /// trained without one; PeerError, Error.
  bool load(const Loaded& loaded, const TensorOf& values, const OfArray& f);
  /// Number of loads that this worker's values include; absent if servers differ.
  std::optional<int64_t> loads() const;
  /// Training step after which a worker that begins now continues, as server 0 last reported.
  int64_t step() const { return step_; }

  /// Steps of the servers' optimizers, as last reported.
  int64_t steps() const { return steps_; }
  /// Number of updates of server 0, as last reported.
  int64_t clock() const;
  /// Lowest worker number that is present or still expected, as server 0 last reported.
  int first_worker() const { return first_worker_; }
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
  /// Sends a request that is answered with values; take_values() receives them.
  void ask_for_values(Connection& server, nlohmann::json header, std::span<const std::byte> body = {});
  /// As take_values(). If the server has ended, pulls values of its own clock, or of this clock of server 0.
  void take_or_pull(Connection& server, const TensorOf& values, std::optional<int64_t> first_clock = std::nullopt);
  void catch_up(const TensorOf& values);
  nlohmann::json tell_load(Connection& server, const Loaded& loaded, const std::string& id, const TensorOf& values,
                           const OfArray& f);
  void begins_to_train();
  void take_values(Connection& server, const TensorOf& values);
  void visit_arrays(const Connection& server, std::byte* memory, const OfArray& f) const;
  nlohmann::json push_header(const Connection& server) const;
  /// Reconnects when the server is back, then calls go_on(its previous clock). Repeats until `patience` is over.
  void connect_again(Connection& server, const std::function<void(int64_t of_step)>& go_on);
  nlohmann::json commit_header(const Step& step) const;
  void take_step(Connection& server, const TensorOf& values);
  bool lacks_step(const Connection& server) const;
  void say_lost(const Connection& server, int64_t before) const;

  WorkerOptions options_;
  std::vector<ParameterInfo> parameters_;
  nlohmann::json optimizer_;
  std::vector<std::unique_ptr<Connection>> servers_;
  std::vector<int64_t> unused_; // parameters without a gradient in this step
  double loss_ = 0;
  bool stop_ = false;
  std::vector<int> members_; // of the present step; empty: this worker's gradients came too late
  double squared_norm_ = 0;  // of the sum of the members' gradients
  bool hybrid_ = false;
  int64_t steps_ = 0;
  int64_t step_ = 0;
  std::optional<int64_t> loads_; // that this worker has seen, from its first load or step on
  int first_worker_ = 0;
  bool said_dense_ = false; // has warned that a sparse parameter has a gradient in all rows
  int64_t sent_before_ = 0; // over closed connections
  int64_t received_before_ = 0;
};

} // namespace trireme::parallel::server
