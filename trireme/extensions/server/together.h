#pragma once

#include <trireme/extensions/server/parameter_server.h>
#include <trireme/extensions/server/replies.h>
#include <trireme/extensions/server/round.h>

#include <optional>
#include <vector>

namespace trireme::parallel::server {

/// Workers that step together. A clock: pushes, then the first server closes it and says whose gradients count, then a
/// commit steps.
///
/// Each push is answered with the values after the step. One worker commits for all: it is told the sum before the
/// step. The other servers add up all gradients as soon as they are there, and ask a worker too; when its members turn
/// out not to be the first server's, it says so (`sum`), and they add up again.
class Together : protected Replies {
 protected:
  Together(rpc::Server& server, const ParameterServerOptions& options);
  ~Together() = default;

  /// Errors: InputError for a worker that has not joined over the connection.
  int worker_of(const PendingRequest& waiting) const;
  void push(const PendingRequest& waiting);
  void sum(const PendingRequest& waiting);
  void commit(const PendingRequest& waiting);
  /// A worker's push came too late for the first server: it is taken out of the round, and answered with values.
  void take_back(const PendingRequest& waiting);
  void pull(const PendingRequest& waiting);
  void answer_pulls();
  /// What time changes: closes the clock, and asks another worker to commit, where nobody is waited for longer than
  /// options().
  void look_at_the_time();
  /// Asks another worker to commit what this one was to: it has joined over another connection, and does not know of
  /// it, or has the step behind it.
  void commits_no_more(int number);
  /// A worker is gone. A gradient that it has pushed, and that has not become part of a sum, is not counted where this
  /// server decides: nobody was told that it is accepted.
  void without(int number);
  void forget_requests(uint64_t client);
  /// Takes out those of this client. The answer, which nobody hears, gives their memory back.
  void forget(std::vector<PendingRequest>& requests, uint64_t client);
  /// New values have come: pushes that are here are not of them.
  void begin_anew();
  /// The step of the training that a worker has behind it where it goes on from these values.
  int64_t step_of(int number) const {
    return load_.step + (together_ ? clock_ - load_.clock : workers_.made(number));
  }
  /// An update has been made.
  virtual void count_update() = 0;

  const ParameterServerOptions& options_;
  const bool together_;
  double default_lr_ = 0;
  bool initialized_ = false;
  Counters counters_;
  nlohmann::json last_ = nlohmann::json::object(); // the decision of the round before this one

 private:
  bool is_hybrid() const {
    return options_.server.mode == ServerOptions::Mode::hybrid;
  }
  int64_t least_that_comes() const;
  std::optional<int64_t> step_of_first(const nlohmann::json& header) const;
  int64_t ahead(const nlohmann::json& header) const;
  bool was_member(int number) const;
  /// Whether the worker is still the process that has sent this, over the same connection.
  bool lives(int number, const PendingRequest& push) const {
    return workers_.is_of(number, push.event.client);
  }
  /// Takes this worker's push out of the round, if there is one.
  void withdraw(int number, const char* why);
  void answer_late();
  bool decides() const;
  bool is_complete() const;
  void close_if_complete();
  void close();
  bool has_committer() const;
  void ask_somebody();
  void ask_to_commit(const PendingRequest& waiting);
  void finish_as_said(const PendingRequest& said);
  void answer_sums();
  bool add_up_again(const std::vector<int>& members);
  void drop_others();
  void finish_round(const nlohmann::json& header, double lr, std::optional<double> factor);
  void gives_up(int number, int64_t step);
  void lose_round();
  void drop_round();

  Round round_;
  std::vector<PendingRequest> pulls_;
  std::vector<PendingRequest> sums_;
  std::vector<PendingRequest> late_; // pushes that wait for the values of the next clock
};

} // namespace trireme::parallel::server
