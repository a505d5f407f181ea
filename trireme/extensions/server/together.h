#pragma once

#include <trireme/extensions/server/parameter_server.h>
#include <trireme/extensions/server/replies.h>
#include <trireme/extensions/server/round.h>

#include <optional>
#include <vector>

namespace trireme::parallel::server {

/// Synchronous workers. A round: all workers push; server 0 closes the round and decides whose gradients count; a
/// commit makes the step.
///
/// Each push is answered with the values after the step. One worker, the committer, gets the sum before the step. The
/// other servers sum all gradients as soon as they have arrived, and ask a worker to commit too. If the members differ
/// from server 0's, that worker reports it (`sum`), and they sum again.
class Together : protected Replies {
 protected:
  Together(rpc::Server& server, const ParameterServerOptions& options);
  ~Together() = default;

  /// Errors: InputError for a worker that has not joined over the connection.
  int worker_of(const PendingRequest& waiting) const;
  void push(const PendingRequest& waiting);
  void sum(const PendingRequest& waiting);
  void commit(const PendingRequest& waiting);
  /// Removes a push that came too late for server 0 from the round, and answers it with values.
  void take_back(const PendingRequest& waiting);
  void pull(const PendingRequest& waiting);
  void answer_pulls();
  /// Handles time-outs of options(): closes the round, and asks another worker to commit if one takes too long.
  void look_at_the_time();
  /// Asks another worker to commit instead of this one, which has reconnected and does not know of the request, or has
  /// finished the step.
  void commits_no_more(int number);
  /// Removes a lost worker. If this server decides, its push does not count unless it is part of a sum: no worker was
  /// told that it is accepted.
  void without(int number);
  void forget_requests(uint64_t client);
  /// Removes this client's requests. Answering them, though nobody receives it, frees their memory.
  void forget(std::vector<PendingRequest>& requests, uint64_t client);
  /// New values were set: drops the pushes, which belong to the old ones.
  void begin_anew();
  /// Returns the training step after which this worker continues, if it takes these values.
  int64_t step_of(int number) const { return load_.step + (together_ ? clock_ - load_.clock : workers_.made(number)); }
  /// Counts an update.
  virtual void count_update() = 0;

  const ParameterServerOptions& options_;
  const bool together_;
  double default_lr_ = 0;
  bool initialized_ = false;
  Counters counters_;
  nlohmann::json last_ = nlohmann::json::object(); // the previous round's decision

 private:
  bool is_hybrid() const { return options_.server.mode == ServerOptions::Mode::hybrid; }
  int64_t least_that_comes() const;
  std::optional<int64_t> step_of_first(const nlohmann::json& header) const;
  int64_t ahead(const nlohmann::json& header) const;
  bool was_member(int number) const;
  /// True if the worker is still the process that sent this, over the same connection.
  bool lives(int number, const PendingRequest& push) const { return workers_.is_of(number, push.event.client); }
  /// Removes this worker's push from the round, if there is one.
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
  std::vector<PendingRequest> late_; // late pushes, answered with the values of the next clock
};

} // namespace trireme::parallel::server
