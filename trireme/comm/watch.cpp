#include <trireme/comm/watch.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/stacks.h>
#include <trireme/base/units.h>
#include <trireme/comm/hang_report.h>
#include <trireme/comm/last_wills.h>
#include <trireme/comm/leaving.h>
#include <trireme/comm/roll_calls.h>

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

namespace trireme::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTick{200};
/// While this rank waits for answers.
constexpr milliseconds kBusyTick{10};
constexpr milliseconds kReadMyError{1000};
/// A hanging store call (its host is stopped) delays others no longer than this.
constexpr milliseconds kStuckStore{1500};
/// Time for this rank's dump, with the stacks of threads that may not run.
constexpr milliseconds kDump{5000}, kLongestDump{60'000};
constexpr milliseconds kNews{300};

} // namespace

/// Lives as long as its thread, which may outlast the Watch when a store call hangs for ever.
class Watch::Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(Store store, int rank, int size, int store_host, WaitLimits limits)
      : store_(std::move(store)),
        rank_(rank),
        size_(size),
        store_host_(store_host),
        long_waits_(rank, size, limits, groups_, roll_calls_, mutex_) {}

  void start() {
    thread_ = std::thread([self = shared_from_this()] { self->run(); });
  }

  void stop() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
    const bool ended = changed_.wait_for(lock, kStuckStore, [&] { return ended_; });
    lock.unlock();
    if (ended) {
      thread_.join();
    } else {
      thread_.detach(); // inside a store call that never returns; it holds all it uses
    }
  }

  void add(std::weak_ptr<Watched> group) { groups_.add(std::move(group)); }

  RollCall roll_call(const std::vector<int>& ranks, const std::string& key, milliseconds patience, bool stacks) {
    std::unique_lock lock(mutex_);
    std::shared_ptr<RollCalls::Question> question;
    if (!ended_ && !store_lost_) {
      question = roll_calls_.add(ranks, key, Clock::now() + patience, stacks);
      wake_.notify_all();
      const auto waited = [&] {
        return changed_.wait_until(lock, question->deadline + milliseconds(300),
                                   [&] { return question->answered || ended_; });
      };
      while (!waited() && Clock::now() < question->deadline + (hang_case_.busy() ? kLongestDump : milliseconds(0))) {
        changed_.wait_for(lock, milliseconds(20));
      }
    }
    if (!question || !question->answered) {
      if (question) {
        question->given_up = true;
      }
      RollCall silent;
      silent.store_answers = false;
      silent.store_host = store_host_;
      silent.store_host_state = host_place_ == own_place_ ? process_state(host_process_) : "";
      silent.store_host_left = host_left_;
      lock.unlock();
      silent.own = view();
      return silent;
    }
    lock.unlock();
    question->result.own = view();
    return question->result;
  }

  void report(const std::string& error, const std::vector<int>& silent, const std::optional<Hang>& hang) {
    std::unique_lock lock(mutex_);
    if (!error_.empty()) {
      return;
    }
    error_ = error;
    silent_ = silent;
    hang_ = hang;
    report_due_ = true;
    wake_.notify_all();
    if (!hang) {
      wait_for_news(lock, silent);
      return;
    }
    if (!hang->alone) {
      changed_.wait_for(lock, kDump, [&] { return hang_case_.attended() || ended_ || store_lost_; });
    }
    lock.unlock();
    hang_case_.attend_alone(*hang, [this] { return view(); }); // does nothing if that succeeded
  }

  void fail_groups(const std::string& why) const { groups_.fail(why); }

  /// A rank that fails because another one gave up waits until it knows whether the cause was a hang, and has then
  /// written its dump.
  void wait_for_news(std::unique_lock<std::mutex>& lock, const std::vector<int>& silent) {
    const auto over = [&] { return ended_ || store_lost_ || stopping_; };
    if (error_.empty() || !silent.empty()) {
      return;
    }
    changed_.wait_for(lock, kNews, [&] { return failure_known_ || seen_hangs_ > 0 || over(); });
    if (seen_hangs_ > 0) {
      changed_.wait_for(lock, kDump, [&] { return hang_case_.attended() || over(); });
    }
  }

  void leave(const std::string& error, milliseconds patience) {
    if (!error.empty()) { // only a failure interrupts the others' groups
      ends_by_error_ = true;
      report(error, {}, std::nullopt);
    }
    std::unique_lock lock(mutex_);
    leaving_.begin(error_.empty() || rank_ == store_host_, Clock::now() + (error_.empty() ? patience : kReadMyError));
    wake_.notify_all();
    changed_.wait_until(lock, leaving_.deadline() + kStuckStore,
                        [&] { return leaving_.done() || ended_ || store_lost_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      lock.unlock();
      try {
        step();
      } catch (const std::exception&) {
        lose_store();
      }
      lock.lock();
      if (store_lost_) {
        break;
      }
      const auto is_busy = [&] { return !roll_calls_.empty() || leaving_.under_way(); };
      const bool busy = is_busy();
      wake_.wait_for(lock, busy ? kBusyTick : kTick, [&] { return stopping_ || report_due_ || (!busy && is_busy()); });
    }
    ended_ = true;
    changed_.notify_all();
  }

  /// One round with the store. Only this thread talks to it.
  void step() {
    groups_.follow_devices();
    const LastWills::Seen seen = wills_.look(store_);
    known_silent_.insert(seen.gone.begin(), seen.gone.end());
    host_left_ = host_left_ || seen.host_left;
    if (seen.pulse != seen_pulse_) {
      seen_pulse_ = seen.pulse;
      const int64_t hangs = store_.add("hang/asked", 0);
      const bool new_hang = hangs != seen_hangs_;
      {
        const std::lock_guard lock(mutex_);
        seen_hangs_ = hangs;
        changed_.notify_all();
      }
      publish(new_hang);
      read_failures();
      long_waits_.print_warnings(store_);
    } else if (version() != published_version_) {
      publish();
    }
    if (!seen.gone.empty()) { // after the hang report, which needs dumps of the waiting ranks
      interrupt_groups_of(seen.gone);
    }
    publish_failure();
    long_waits_.step(store_, [this] { return view(); });
    roll_calls_.step(store_, known_silent_);
    go_on_leaving();
  }

  int64_t version() {
    const std::lock_guard lock(mutex_);
    return groups_.version() + (leaving_.begun() ? 1 : 0);
  }

  /// This rank's own view.
  PeerView view() {
    PeerView view;
    view.process = getpid();
    view.place = own_place_;
    view.notes = current_notes();
    const std::lock_guard lock(mutex_);
    view.answered = true;
    view.left = leaving_.begun() || (ends_by_error_ && !error_.empty()); // an error: no further message comes
    view.error = error_;
    view.groups = groups_.views();
    return view;
  }

  void publish(bool with_stack = false) {
    published_version_ = version();
    PeerView own = view();
    if (with_stack) {
      own.stack = capture_stack(getpid()).frames;
    }
    nlohmann::json message = to_json(own);
    message["pulse"] = seen_pulse_;
    // A tensor's name comes from the caller and may not be UTF-8.
    store_.set(progress_key(rank_), message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    find_store_host();
  }

  /// Records the process of the store's host while it answers.
  void find_store_host() {
    if (host_process_ != 0 || store_host_ < 0) {
      return;
    }
    if (const auto text = store_.find(progress_key(store_host_))) {
      const PeerView host = view_from_json(nlohmann::json::parse(*text));
      const std::lock_guard lock(mutex_);
      host_process_ = host.process;
      host_place_ = host.place;
    }
  }

  void publish_failure() {
    nlohmann::json note;
    std::optional<Hang> hang;
    {
      const std::lock_guard lock(mutex_);
      if (!report_due_) {
        return;
      }
      report_due_ = false;
      note = {{"rank", rank_}, {"silent", silent_}};
      hang = hang_;
    }
    publish();
    if (hang) {
      hang_case_.open(store_, *hang);
      note["hang"] = true;
    }
    const int64_t number = store_.add("failures", 1);
    store_.set("failure/" + std::to_string(number), note.dump());
    raise_pulse(store_);
    if (hang) {
      attend_hang();
    }
  }

  void attend_hang() {
    const auto begin = Clock::now(); // the dump's duration is added to the deadlines of this rank's roll calls
    hang_case_.attend(store_, [this] { return view(); });
    const std::lock_guard lock(mutex_);
    roll_calls_.postpone(Clock::now() - begin);
    changed_.notify_all();
  }

  void read_failures() {
    const int64_t failures = store_.add("failures", 0);
    while (read_failures_ < failures) {
      const auto note = store_.find("failure/" + std::to_string(read_failures_ + 1));
      if (!note) {
        return; // counted but not written yet; its pulse is still to come
      }
      ++read_failures_;
      react_to(nlohmann::json::parse(*note));
    }
  }

  void react_to(const nlohmann::json& note) {
    if (note.contains("hang")) {
      attend_hang(); // before the waiting threads continue
    }
    std::set<int> lost = {note.at("rank").get<int>()};
    for (const int rank : note.at("silent")) {
      lost.insert(rank);
      known_silent_.insert(rank);
    }
    lost.erase(rank_);
    interrupt_groups_of(lost);
  }

  void interrupt_groups_of(const std::set<int>& ranks) {
    {
      const std::lock_guard lock(mutex_);
      failure_known_ = true;
      changed_.notify_all();
    }
    groups_.interrupt(ranks);
  }

  void go_on_leaving() {
    bool with_error = false;
    {
      const std::lock_guard lock(mutex_);
      if (!leaving_.under_way()) {
        return;
      }
      with_error = !error_.empty();
    }
    if (!counted_) {
      publish();
      wills_.take_back(store_,
                       rank_ == store_host_ && !with_error); // first: a rank killed here must not count twice
      store_.add("left", 1);
      counted_ = true;
    }
    const int64_t left = store_.add("left", 0);
    warn_of_late_ends();
    std::map<int, PeerView> silent;
    {
      const std::lock_guard lock(mutex_);
      std::set<int> dead = known_silent_;
      dead.insert(silent_.begin(), silent_.end());
      if (leaving_.step(left, dead, failure_known_ && rank_ != store_host_)) {
        silent = leaving_.silent();
        changed_.notify_all();
      }
    }
    for (const auto& [rank, peer] : silent) { // the launcher then waits for this rank
      log::warning("rank ", rank, " does not answer",
                   peer.state.empty() ? "" : concat(": its process ", peer.process, ' ', peer.state), "; rank ", rank_,
                   " ends without it");
    }
  }

  /// For a user who sees that a process does not end.
  void warn_of_late_ends() {
    const auto warn_after = long_waits_.limits().warn_after;
    std::map<int, PeerView> ranks;
    std::vector<int> late;
    std::string what;
    {
      const std::lock_guard lock(mutex_);
      if (warned_of_ends_ || warn_after.count() == 0 || !error_.empty() ||
          Clock::now() < leaving_.since() + warn_after || leaving_.others().empty()) {
        return;
      }
      ranks = leaving_.others();
    }
    warned_of_ends_ = true;
    std::map<int, PeerView> printers = {
        {rank_, view()}}; // left ranks wait too, and their output is shown; a late rank's is not
    for (const auto& [rank, peer] : ranks) {
      if (peer.left) {
        printers[rank].answered = true;
      } else {
        const std::string activity = describe_activity(peer);
        what += concat(late.empty() ? "rank " : ", rank ", rank, activity.empty() ? " lives" : " is " + activity);
        late.push_back(rank);
      }
    }
    if (!late.empty()) {
      const double seconds = static_cast<double>(long_waits_.limits().end.count()) / 1000;
      long_waits_.warn_once(
          store_, "late/ends", printers,
          concat("rank ", rank_, " has ended its work and waits for ", name_ranks(late), " to end too (", what,
                 "), for ", format_seconds(seconds), " in all. Look at the output of ", name_ranks(late),
                 "; kill -CONT continues a process that is stopped."));
    }
  }

  void lose_store() {
    {
      const std::lock_guard lock(mutex_);
      store_lost_ = true;
      changed_.notify_all();
      if (stopping_ || leaving_.begun()) {
        return; // the host leaves last, after all others
      }
    }
    if (store_host_ >= 0) {
      interrupt_groups_of({store_host_});
    }
  }

  Store store_;
  const int rank_;
  const int size_;
  const int store_host_;
  const std::string own_place_ = process_place();
  std::thread thread_;

  WatchedGroups groups_;
  std::mutex mutex_;
  std::condition_variable wake_;    // for the thread
  std::condition_variable changed_; // from the thread
  bool stopping_ = false;
  bool ended_ = false;
  bool store_lost_ = false;
  RollCalls roll_calls_{rank_, store_host_, mutex_, changed_};
  Leaving leaving_{size_, roll_calls_};
  LongWaits long_waits_;
  std::string error_;
  std::vector<int> silent_;
  bool report_due_ = false;
  std::optional<Hang> hang_;
  HangCase hang_case_{rank_, size_};
  /// Roll calls because of a hang so far; only the thread changes it.
  int64_t seen_hangs_ = 0;
  int64_t host_process_ = 0;
  std::string host_place_;
  bool failure_known_ = false;
  std::atomic<bool> ends_by_error_{false};
  std::atomic<bool> host_left_{false};

  // Only the thread touches these.
  int64_t seen_pulse_ = 0;
  int64_t read_failures_ = 0;
  int64_t published_version_ = -1;
  LastWills wills_{rank_, size_};
  std::set<int> known_silent_;
  bool counted_ = false;
  bool warned_of_ends_ = false;
};

Watch::Watch(Store store, int rank, int size, int store_host, WaitLimits limits)
    : loop_(std::make_shared<Loop>(std::move(store), rank, size, store_host, limits)) {
  prepare_stack_capture();
  loop_->start();
}

Watch::~Watch() {
  loop_->stop();
}

void Watch::add(std::weak_ptr<Watched> group) {
  loop_->add(std::move(group));
}

RollCall Watch::roll_call(const std::vector<int>& ranks, const std::string& key, milliseconds patience, bool stacks) {
  return loop_->roll_call(ranks, key, patience, stacks);
}

void Watch::report(const std::string& error, const std::vector<int>& silent, const std::optional<Hang>& hang) {
  if (!error.empty()) {
    loop_->report(error, silent, hang);
  }
}

void Watch::fail_groups(const std::string& why) {
  loop_->fail_groups(why);
}

void Watch::leave(const std::string& error, milliseconds patience) {
  loop_->leave(error, patience);
}

} // namespace trireme::comm
