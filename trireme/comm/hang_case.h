#pragma once

#include <trireme/comm/progress.h>
#include <trireme/comm/store.h>

#include <atomic>
#include <functional>
#include <string>

namespace trireme::comm {

/// Report of a hang, from the rank that notices it to all ranks.
struct Hang {
  /// hang_text().
  std::string text;
  /// The rank that prints it.
  int printer = 0;
  /// The store does not answer: every rank prints its own report.
  bool alone = false;
};

/// Handles a hang on one rank. If several ranks notice it, the first report counts; every rank writes its dump, one
/// prints the report. Internal to Watch, whose thread makes all calls except attend_alone().
class HangCase {
 public:
  using View = std::function<PeerView()>;
  HangCase(int rank, int size) : rank_(rank), size_(size) {}

  /// Writes the report to the store unless another rank has.
  void open(Store& store, const Hang& hang);
  /// Writes the dump and prints, once.
  void attend(Store& store, const View& view);
  void attend_alone(const Hang& hang, const View& view);
  bool attended() const { return attended_; }
  /// True while a dump is written or the report printed: stacks take time.
  bool busy() const { return busy_ > 0; }

 private:
  class Busy {
   public:
    explicit Busy(std::atomic<int>& count) : count_(count) { ++count_; }
    ~Busy() { --count_; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    std::atomic<int>& count_;
  };
  void dump(const std::string& folder, int from, const std::string& report, const View& view) const;

  const int rank_;
  const int size_;
  std::atomic<bool> attended_{false};
  std::atomic<int> busy_{0};
};

} // namespace trireme::comm
