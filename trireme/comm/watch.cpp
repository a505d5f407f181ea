#include <trireme/comm/watch.h>

#include <trireme/base/error.h>

#include <algorithm>
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
/// A rank that says nothing for this long while everybody leaves is taken for dead.
constexpr milliseconds kSilentLeaver{3000};
constexpr milliseconds kReadMyError{1000};
/// A store call that hangs (its host is stopped) holds up nobody longer than this.
constexpr milliseconds kStuckStore{1500};

std::string progress_key(int rank) {
  return "progress/" + std::to_string(rank);
}

} // namespace

/// Lives as long as its thread, which may outlast the Watch when a store call hangs for ever.
class Watch::Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(Store store, int rank, int size, int store_host) : store_(std::move(store)), rank_(rank), size_(size), store_host_(store_host) {}

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

  void add(std::weak_ptr<Watched> group) {
    const std::lock_guard lock(mutex_);
    groups_.push_back(std::move(group));
  }

  RollCall roll_call(const std::vector<int>& ranks, const std::string& key, milliseconds patience) {
    auto question = std::make_shared<Question>();
    question->key = key;
    question->result.store_host = store_host_;
    for (const int rank : ranks) {
      if (rank != rank_) {
        question->result.peers[rank] = {};
      }
    }
    question->deadline = Clock::now() + patience;
    std::unique_lock lock(mutex_);
    if (!ended_ && !store_lost_) {
      questions_.push_back(question);
      wake_.notify_all();
      changed_.wait_until(lock, question->deadline + milliseconds(300), [&] { return question->answered || ended_; });
    }
    if (!question->answered) {
      question->given_up = true;
      RollCall silent;
      silent.store_answers = false;
      silent.store_host = store_host_;
      return silent;
    }
    return question->result;
  }

  void report(const std::string& error, const std::vector<int>& silent) {
    const std::lock_guard lock(mutex_);
    if (error_.empty()) {
      error_ = error;
      silent_ = silent;
      report_due_ = true;
      wake_.notify_all();
    }
  }

  void leave(const std::string& error, milliseconds patience) {
    if (!error.empty()) { // a good end is no failure to tell: hearing of one interrupts the others' groups
      report(error, {});
    }
    std::unique_lock lock(mutex_);
    leaving_ = true;
    wait_for_others_ = error_.empty() || rank_ == store_host_;
    leave_deadline_ = Clock::now() + (error_.empty() ? patience : kReadMyError);
    wake_.notify_all();
    changed_.wait_until(lock, leave_deadline_ + kStuckStore, [&] { return others_left_ || ended_ || store_lost_; });
  }

 private:
  struct Question {
    std::string key;
    RollCall result;
    Clock::time_point deadline;
    int64_t pulse = 0;
    bool answered = false;
    bool given_up = false;
  };

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
      const bool busy = !questions_.empty() || (leaving_ && !others_left_);
      wake_.wait_for(lock, busy ? kBusyTick : kTick, [&] {
        return stopping_ || report_due_ || (!busy && (!questions_.empty() || (leaving_ && !others_left_)));
      });
    }
    ended_ = true;
    changed_.notify_all();
  }

  /// One round with the store. Only this thread talks to it.
  void step() {
    const int64_t pulse = store_.add("pulse", 0);
    if (pulse != seen_pulse_) {
      seen_pulse_ = pulse;
      publish();
      listen();
    } else if (version() != published_version_) {
      publish();
    }
    tell_failure();
    ask();
    go();
  }

  int64_t version() {
    const std::lock_guard lock(mutex_);
    int64_t sum = leaving_ ? 1 : 0;
    for (const auto& weak : groups_) {
      if (const auto group = weak.lock()) {
        sum += group->version() + 1;
      }
    }
    return sum;
  }

  void publish() {
    published_version_ = version();
    nlohmann::json message = {{"pulse", seen_pulse_}};
    {
      const std::lock_guard lock(mutex_);
      message["left"] = leaving_;
      message["error"] = error_;
      auto& groups = message["groups"] = nlohmann::json::object();
      for (const auto& weak : groups_) {
        if (const auto group = weak.lock()) {
          groups[group->key()] = to_json(group->progress());
        }
      }
    }
    // A tensor's name comes from the caller and may not be UTF-8.
    store_.set(progress_key(rank_), message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }

  /// Raises the pulse so that every rank looks and answers; returns its number.
  int64_t raise_pulse() {
    return store_.add("pulse", 1);
  }

  void tell_failure() {
    nlohmann::json note;
    {
      const std::lock_guard lock(mutex_);
      if (!report_due_) {
        return;
      }
      report_due_ = false;
      note = {{"rank", rank_}, {"silent", silent_}};
    }
    publish();
    const int64_t number = store_.add("failures", 1);
    store_.set("failure/" + std::to_string(number), note.dump());
    raise_pulse();
  }

  void listen() {
    const int64_t failures = store_.add("failures", 0);
    while (heard_failures_ < failures) {
      const auto note = store_.find("failure/" + std::to_string(heard_failures_ + 1));
      if (!note) {
        return; // counted but not written yet; its pulse is still to come
      }
      ++heard_failures_;
      hear(nlohmann::json::parse(*note));
    }
  }

  void hear(const nlohmann::json& note) {
    std::set<int> lost = {note.at("rank").get<int>()};
    for (const int rank : note.at("silent")) {
      lost.insert(rank);
      known_silent_.insert(rank);
    }
    lost.erase(rank_);
    interrupt_groups_of(lost);
  }

  void interrupt_groups_of(const std::set<int>& ranks) {
    std::vector<std::shared_ptr<Watched>> affected;
    {
      const std::lock_guard lock(mutex_);
      failure_heard_ = true;
      for (const auto& weak : groups_) {
        const auto group = weak.lock();
        if (group && std::any_of(group->members().begin(), group->members().end(), [&](int rank) { return ranks.count(rank) != 0; })) {
          affected.push_back(group);
        }
      }
    }
    for (const auto& group : affected) {
      group->interrupt();
    }
  }

  /// Goes on with the roll calls that are under way.
  void ask() {
    std::vector<std::shared_ptr<Question>> open;
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(questions_, [](const auto& question) { return question->answered || question->given_up; });
      open = questions_;
    }
    for (const auto& question : open) {
      if (question->pulse == 0) {
        question->pulse = raise_pulse();
      }
      bool all = true;
      for (auto& [rank, peer] : question->result.peers) {
        if (!peer.answered && !peer.left) {
          read(rank, *question, peer);
          all = all && (peer.answered || peer.left || known_silent_.count(rank) != 0);
        }
      }
      if (all || Clock::now() >= question->deadline) {
        const std::lock_guard lock(mutex_);
        question->answered = true;
        changed_.notify_all();
      }
    }
  }

  void read(int rank, const Question& question, PeerView& peer) {
    const auto text = store_.find(progress_key(rank));
    if (!text) {
      return;
    }
    const auto message = nlohmann::json::parse(*text);
    peer.answered = message.at("pulse").get<int64_t>() >= question.pulse;
    peer.left = message.at("left");
    peer.error = message.at("error");
    const auto& groups = message.at("groups");
    const auto found = groups.find(question.key);
    if (found != groups.end()) {
      peer.progress = progress_from_json(*found);
    }
  }

  /// Goes on with leaving.
  void go() {
    {
      const std::lock_guard lock(mutex_);
      if (!leaving_ || others_left_) {
        return;
      }
    }
    if (!counted_) {
      publish();
      store_.add("left", 1);
      counted_ = true;
    }
    const int64_t left = store_.add("left", 0);
    const auto now = Clock::now();
    const std::lock_guard lock(mutex_);
    std::set<int> dead = known_silent_;
    dead.insert(silent_.begin(), silent_.end());
    bool all = left + static_cast<int64_t>(dead.size()) >= size_;
    all = all || !wait_for_others_ || now >= leave_deadline_ || (failure_heard_ && rank_ != store_host_);
    if (!all && !farewell_) {
      farewell_ = std::make_shared<Question>();
      farewell_->deadline = now + kSilentLeaver;
      for (int rank = 0; rank < size_; ++rank) {
        if (rank != rank_) {
          farewell_->result.peers[rank] = {};
        }
      }
      questions_.push_back(farewell_);
    } else if (!all && farewell_->answered && now >= farewell_->deadline) {
      for (const auto& [rank, peer] : farewell_->result.peers) {
        all = all || (!peer.answered && !peer.left);
      }
      farewell_.reset();
    }
    if (all) {
      others_left_ = true;
      changed_.notify_all();
    }
  }

  void lose_store() {
    {
      const std::lock_guard lock(mutex_);
      store_lost_ = true;
      changed_.notify_all();
      if (stopping_ || leaving_) {
        return; // the host leaves last, when all others have said good-bye
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
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable wake_;    // for the thread
  std::condition_variable changed_; // from the thread
  bool stopping_ = false;
  bool ended_ = false;
  bool store_lost_ = false;
  std::vector<std::weak_ptr<Watched>> groups_;
  std::vector<std::shared_ptr<Question>> questions_;
  std::string error_;
  std::vector<int> silent_;
  bool report_due_ = false;
  bool failure_heard_ = false;
  bool leaving_ = false;
  bool wait_for_others_ = true;
  bool others_left_ = false;
  Clock::time_point leave_deadline_;

  // Only the thread touches these.
  int64_t seen_pulse_ = 0;
  int64_t heard_failures_ = 0;
  int64_t published_version_ = -1;
  std::set<int> known_silent_;
  std::shared_ptr<Question> farewell_;
  bool counted_ = false;
};

Watch::Watch(Store store, int rank, int size, int store_host)
    : loop_(std::make_shared<Loop>(std::move(store), rank, size, store_host)) {
  loop_->start();
}

Watch::~Watch() {
  loop_->stop();
}

void Watch::add(std::weak_ptr<Watched> group) {
  loop_->add(std::move(group));
}

RollCall Watch::roll_call(const std::vector<int>& ranks, const std::string& key, milliseconds patience) {
  return loop_->roll_call(ranks, key, patience);
}

void Watch::report(const std::string& error, const std::vector<int>& silent) {
  if (!error.empty()) {
    loop_->report(error, silent);
  }
}

void Watch::leave(const std::string& error, milliseconds patience) {
  loop_->leave(error, patience);
}

} // namespace trireme::comm
