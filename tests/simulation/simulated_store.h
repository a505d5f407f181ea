#pragma once

#include <trireme/store/client.h>
#include <trireme/store/requests.h>
#include <trireme/store/table.h>

#include <tests/simulation/simulated_link.h>
#include <tests/simulation/simulator.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace trireme::simulation {

/// A job's store, whose requests are executed by the real ones' code.
class SimulatedStore {
 public:
  explicit SimulatedStore(Simulator& simulator) : simulator_(simulator) {}
  ~SimulatedStore() { simulator_.end_processes(); }
  SimulatedStore(const SimulatedStore&) = delete;
  SimulatedStore& operator=(const SimulatedStore&) = delete;

  /// A connection of the process that runs. It ends with the process, and its last will is executed then.
  std::shared_ptr<store::Client> connect(std::chrono::milliseconds patience = store::Client::kPatience);
  /// The network between a process and the store is cut, or mended: what is sent waits meanwhile.
  void set_silent(int process, bool silent);
  /// The store takes the process for gone, as after keep-alives without an answer; the process hears of it when its
  /// network is mended.
  void drop(int process);

  /// The process that runs it is killed, and another one begins with nothing after this time.
  void lose(Clock::duration back_after);

  const store::Table& table() const { return table_; }

 private:
  friend class SimulatedChannel;
  struct Connection;

  void serve(const std::shared_ptr<Connection>& connection, const std::string& request);
  void reply(const std::shared_ptr<Connection>& connection, const std::string& reply);
  void end(const std::shared_ptr<Connection>& connection);
  void answer_ready();

  Simulator& simulator_;
  store::Table table_;
  std::map<uint64_t, std::shared_ptr<Connection>> connections_;
  uint64_t last_number_ = 0;
  Clock::time_point back_at_ = {};
};

} // namespace trireme::simulation
