#pragma once

#include <trireme/launch/descendants.h>
#include <trireme/launch/descriptor.h>
#include <trireme/launch/guardian.h>
#include <trireme/launch/place.h>
#include <trireme/launch/reserved_port.h>
#include <trireme/launch/secret.h>
#include <trireme/launch/signals.h>

#include <array>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// Settings that all starts of a job share on one place.
struct PlaceSetup {
  /// Name in the hostfile; empty for a job on one machine.
  std::string host;
  std::string run_id;
  std::string secret;
  /// Variables for the ranks in addition to this process's environment.
  Variables extra_env;
  /// Standard input of rank 0, -1: none.
  int stdin_fd = -1;
  /// Receives {"is": "gone"} from the guardian when this process is lost and the ranks have ended; -1: nothing is sent.
  int last_word_fd = -1;
};

/// Ranks as processes of this machine, children of a guardian process; each start has its own guardian. Each rank has
/// its own session, and so its own process group. Their orphans are killed. If this process is killed, the guardian
/// kills everything; if the guardian is killed, this process does. This process has no other children than those of
/// such places: it adopts and reaps every orphan. When one place's guardian is killed, the ranks of all places of the
/// process end.
class LocalPlace : public Place {
 public:
  LocalPlace(PlaceSetup setup, SignalWatch& signals);
  ~LocalPlace() override;

  State state() const override { return running_ ? State::running : State::ready; }
  const std::string& why_lost() const override;
  void listen(const std::string& address, int ranks) override;
  std::optional<Ports> ports() const override;
  void start(const Share& share, PlaceEvents& events) override;
  void signal(int number) override;
  void stop(int number) override;
  void kill() override;
  /// Ends the ranks at that time, also those of later starts, unless a later call extends it. Without a call they need
  /// no lease.
  void lease_until(HostTime end);
  /// True if a process of the last start did not end after SIGKILL.
  bool left_process() const { return left_process_; }

  void add_to(std::vector<pollfd>& polled) const override;
  void serve(const std::vector<pollfd>& polled) override;
  void advance() override;
  std::optional<Clock::time_point> wake() const override {
    return look_soon_ ? std::optional(Clock::time_point()) : std::nullopt;
  }

 private:
  struct Rank {
    std::array<Pipe, 2> pipes;
    pid_t pid = -1;
    bool live = false;
  };
  SpawnRequest request_for(const Share& share, int local_rank, int secret_fd, int nothing_fd);
  void read_events();
  void handle(const Message& event);
  void note_end(size_t rank, const RankEnd& end);
  void finish();
  void lose_guardian();
  bool read_once(size_t rank, int stream);
  void drain(size_t rank);

  PlaceSetup setup_;
  SignalWatch& signals_;
  const OrphanAdoption adoption_;
  const Pipe lifeline_;
  const SecretMemory secret_;
  std::vector<std::string> environment_;
  MeetingPoint meeting_;
  ReservedPort program_port_;

  PlaceEvents* events_ = nullptr;
  int first_rank_ = 0;
  std::vector<Rank> ranks_;
  bool running_ = false;
  std::exception_ptr refusal_;
  bool kill_sent_ = false;
  /// The answer to a start may arrive with the end of a rank, which no descriptor signals afterwards.
  bool look_soon_ = false;
  bool left_process_ = false;
  std::optional<HostTime> lease_;
  std::optional<Guardian> guardian_;
};

} // namespace trireme::launch
