#pragma once

#include <trireme/launch/descendants.h>
#include <trireme/launch/descriptor.h>
#include <trireme/launch/guardian.h>
#include <trireme/launch/out_of_memory.h>
#include <trireme/launch/place.h>
#include <trireme/launch/secret.h>
#include <trireme/launch/signals.h>

#include <array>
#include <set>

namespace trireme::launch {

/// What all starts of a job share at one place.
struct PlaceSetup {
  /// As the hostfile has it; empty for a job on one machine.
  std::string host;
  std::string run_id;
  std::string secret;
  /// Variables for the ranks beyond this process's own.
  Variables extra_env;
  /// The most ranks that one start will have.
  int most_ranks = 1;
  /// What rank 0 reads, -1: nothing.
  int stdin_fd = -1;
};

/// Ranks as processes of this one. Each has a session (and so a process group) of its own. Children that they leave behind end with
/// them; should this process be killed, the kernel and a guardian process kill all of them.
/// At most one in a process, which has no other children: it adopts and reaps every orphan.
class LocalPlace : public Place {
 public:
  LocalPlace(PlaceSetup setup, SignalWatch& signals);
  ~LocalPlace() override;

  State state() const override {
    return running_ ? State::running : State::ready;
  }
  const std::string& why_lost() const override;
  void listen(const std::string& address, int ranks) override;
  std::optional<int> port() const override;
  void start(const Share& share, PlaceEvents& events) override;
  void signal(int number) override;
  void stop(int number) override;
  void kill() override;

  void add_to(std::vector<pollfd>& polled) const override;
  void serve(const std::vector<pollfd>& polled) override;
  void child_ended() override;
  void advance() override;
  std::optional<Clock::time_point> wake() const override;

 private:
  struct Rank {
    std::array<Pipe, 2> pipes;
    pid_t pid = -1;
    bool live = false;
  };
  void start_rank(const Share& share, int local_rank);
  bool read_once(size_t rank, int stream);
  void drain(size_t rank);
  void end_leftovers();
  void kill_all();

  PlaceSetup setup_;
  SignalWatch& signals_;
  const OrphanAdoption adoption_;
  Guardian guardian_;
  const Pipe lifeline_;
  const SecretMemory secret_;
  std::vector<std::string> environment_;
  OutOfMemoryWatch memory_;
  MeetingPoint meeting_;

  PlaceEvents* events_ = nullptr;
  int first_rank_ = 0;
  std::vector<Rank> ranks_;
  size_t live_ = 0;
  bool running_ = false;
  bool children_left_ = false;
  bool stopping_ = false;
  bool leftovers_told_ = false;
  std::set<pid_t> told_groups_;
  std::optional<Clock::time_point> kill_until_;
  Clock::time_point killed_at_{};
};

} // namespace trireme::launch
