#include "elastic_job.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::simulation {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Messages, a spare's moment and the polls of those who wait.
constexpr milliseconds kSlack{2500};

ElasticSettings choose(Random& random) {
  ElasticSettings settings;
  settings.processes = 1 + static_cast<int>(random.below(4));
  settings.meeting.max_ranks = static_cast<int>(random.below(settings.processes + 1));
  const bool two = settings.processes >= 2 && settings.meeting.max_ranks != 1 && random.chance(0.3);
  settings.meeting.min_ranks = two ? 2 : 1;
  settings.meeting.start_patience = milliseconds(200 + random.below(1800));
  settings.meeting.late_patience = random.chance(0.7) ? milliseconds(5000) : milliseconds(600);
  settings.meeting.patience = seconds(120); // longer than a newcomer, a restart or a stop takes
  settings.stretch =
      random.chance(0.3) ? random.between(seconds(6), seconds(9)) : random.between(milliseconds(20), milliseconds(900));
  settings.stretches = 2 + random.below(4);
  settings.saves_every = 1 + random.below(2);
  settings.kills = static_cast<int>(random.below(6));
  settings.pauses = random.chance(0.3) ? 1 + static_cast<int>(random.below(2)) : 0;
  settings.world_timeout = random.between(milliseconds(500), seconds(3));
  settings.fresh_at_end = 0.3;
  return settings;
}

} // namespace

ElasticJob::ElasticJob(Simulator& simulator)
    : simulator_(simulator), store_(simulator), settings_(choose(simulator.random())) {}

void ElasticJob::run() {
  kills_left_ = settings_.kills;
  next_key_ = "elastic/round/1";
  for (int place = 0; place < settings_.processes; ++place) {
    const bool late = place > 0 && simulator_.random().chance(0.2); // a newcomer
    launch(place, false,
           late ? simulator_.random().between(milliseconds(0), settings_.stretch * settings_.stretches)
                : simulator_.random().between(milliseconds(0), milliseconds(100)));
  }
  disturb();
  simulator_.after_each_event([this] { check(); });
  const bool ended = simulator_.run(seconds(900));
  if (!ended) {
    simulator_.violate("the job does not end");
  } else if (!folder_.finished) {
    simulator_.violate("all processes have ended, and the training is not finished");
  }
  over_ = true;
  simulator_.after_each_event(nullptr);
  for (int process = 0; process < simulator_.processes(); ++process) {
    simulator_.kill(process);
  }
}

std::shared_ptr<store::Client> ElasticJob::connect() {
  while (true) {
    try {
      return store_.connect();
    } catch (const store::LostError&) {
      sleep_for(milliseconds(100));
    }
  }
}

void ElasticJob::lose_store() {
  simulator_.note("the store is lost");
  store_.lose(simulator_.random().between(milliseconds(0), milliseconds(1500)));
  rounds_before_ += last_.number + 1;
  last_ = {};
  next_key_ = "elastic/round/1";
  come_keys_.clear();
  worlds_.clear();
  first_came_ = all_wait_since_ = orphaned_since_ = Clock::time_point::max();
  for (auto& [number, process] : processes_) {
    process.id = 0;
    process.stale = process.stale || process.late;
  }
}

void ElasticJob::launch(int place, bool again, Clock::duration later) {
  ++started_;
  const int number = simulator_.start(
      concat("process ", started_, " at place ", place),
      [this, place, again] {
        try {
          program(place, again);
        } catch (const Killed&) {
          throw;
        } catch (const store::FinishedError&) {
          if (!folder_.finished) {
            simulator_.violate("a process that waits is ended, and the training is not finished");
          }
        } catch (const std::exception& error) {
          simulator_.violate(concat("ends with an error: ", error.what()));
        }
      },
      later);
  processes_[number] = {.place = place};
  simulator_.when_it_ends(number, [this, number, place] {
    processes_[number].doing = Doing::nothing;
    orphaned_since_ = Clock::time_point::max(); // it may have been the one that was about to begin
    if (over_) {
      return;
    }
    for (int other = 0; other < simulator_.processes(); ++other) {
      simulator_.wake(other); // their connections to it end
    }
    if (simulator_.end_of(number) == "killed") {
      launch(place, true, simulator_.random().between(milliseconds(50), seconds(3)));
    }
  });
  if (kills_left_ > 0 && simulator_.random().chance(0.4)) { // at one of its requests
    --kills_left_;
    simulator_.kill_at_call(number, simulator_.random().below(simulator_.random().chance(0.5) ? 12 : 200),
                            simulator_.random().chance(0.5));
  }
}

// Kills and stops at any time.
void ElasticJob::disturb() {
  Random& random = simulator_.random();
  const Clock::duration all = std::max<Clock::duration>(settings_.stretch * (settings_.stretches + 2), seconds(3));
  for (int i = 0; i < settings_.kills; ++i) {
    simulator_.after(random.between(milliseconds(0), all), [this] {
      const std::vector<int> there = living();
      if (kills_left_ > 0 && !there.empty()) {
        --kills_left_;
        simulator_.kill(there[static_cast<size_t>(simulator_.random().below(std::ssize(there)))]);
      }
    });
  }
  for (int i = 0; i < settings_.pauses; ++i) {
    simulator_.after(random.between(milliseconds(0), all), [this] {
      const std::vector<int> there = living();
      if (there.empty()) {
        return;
      }
      const int process = there[static_cast<size_t>(simulator_.random().below(std::ssize(there)))];
      simulator_.pause(process);
      paused_.insert(process);
      simulator_.after(simulator_.random().between(milliseconds(10), seconds(15)), [this, process] {
        simulator_.go_on(process);
        paused_.erase(process);
        went_on_[process] = simulator_.now();
        all_wait_since_ = orphaned_since_ = Clock::time_point::max();
      });
    });
  }
  for (int i = 0; i < settings_.breaks; ++i) {
    simulator_.after(random.between(milliseconds(0), all), [this] {
      const std::vector<int> there = living();
      if (!there.empty()) {
        const int process = there[static_cast<size_t>(simulator_.random().below(std::ssize(there)))];
        simulator_.note(concat("the connection of ", simulator_.name(process), " to the store breaks"));
        all_wait_since_ = orphaned_since_ = Clock::time_point::max();
        store_.drop(process);
      }
    });
  }
  if (settings_.loses_store) {
    simulator_.after(random.between(milliseconds(0), all), [this] { lose_store(); });
  }
  if (random.chance(settings_.fresh_at_end)) {
    simulator_.after(random.between(milliseconds(0), all), [this] { launch(settings_.processes, false, {}); });
  }
}

std::vector<int> ElasticJob::living() const {
  std::vector<int> all;
  for (const auto& [number, process] : processes_) {
    if (simulator_.lives(number)) {
      all.push_back(number);
    }
  }
  return all;
}

store::Round ElasticJob::next_round(store::Meeting& meeting) {
  Process& process = mine();
  process.doing = Doing::waits;
  store::Round round = meeting.next_round();
  process.knows = process.knows && !process.late; // what a late one has is old
  process.id = round.members.at(static_cast<size_t>(round.rank));
  process.round = rounds_before_ + round.number;
  // It may be one that is over already.
  process.late = round.number < last_.number && !last_.has_member(process.id);
  process.doing = Doing::nothing;
  simulator_.note(concat(simulator_.name(simulator_.running()), " is rank ", round.rank, " of ", round.size,
                         " in round ", round.number));
  return round;
}

void ElasticJob::train() {
  Process& process = mine();
  process.doing = Doing::trains;
  process.knows = true;
  if (folder_.finished && !process.late && !process.stale) {
    simulator_.violate("a training begins anew after its end");
  }
  for (const int other : living()) {
    const Process& theirs = processes_[other];
    if (theirs.doing == Doing::trains && theirs.round != process.round && !theirs.late && !process.late) {
      simulator_.violate(concat("rounds ", theirs.round, " and ", process.round, " train at the same time"));
    }
  }
}

void ElasticJob::leave_round() {
  mine().doing = Doing::nothing;
}

bool ElasticJob::write(int64_t row, bool opens) {
  Process& process = mine();
  if (process.round < folder_.writer_round) { // the folder's token would refuse it
    if (!process.late) {
      simulator_.violate(concat("round ", process.round, " writes into the run of round ", folder_.writer_round));
    }
    return false;
  }
  if (opens) {
    process.claim = ++folder_.claim;
    folder_.writer_round = process.round;
    folder_.row = std::min(folder_.row, row - 1);
  }
  if (process.claim != folder_.claim) {
    return false;
  }
  if (row <= folder_.row) {
    simulator_.violate(concat("row ", row, " of metrics.jsonl comes after row ", folder_.row));
  }
  folder_.row = row;
  return true;
}

bool ElasticJob::save() {
  if (mine().round < folder_.writer_round || mine().claim != folder_.claim) {
    return false;
  }
  folder_.saved = mine().done;
  return true;
}

// Of its place there is no newer process than itself.
void ElasticJob::note_new_number() {
  const std::string* const ids = store_.table().find("elastic/ids");
  for (int64_t id = ids == nullptr ? 0 : std::stoll(*ids); id > 0; --id) {
    const std::string* const order = store_.table().find(concat("elastic/order/", id));
    if (order != nullptr && order->ends_with(concat(' ', mine().place))) {
      mine().id = id;
      return;
    }
  }
}

// Under which members whose connections broke come for the next round.
void ElasticJob::add_other_numbers() {
  come_keys_.resize(last_.members.size());
  const std::string* const ids = store_.table().find("elastic/ids");
  for (int64_t id = ids == nullptr ? 0 : std::stoll(*ids); id > 0 && last_.number > 0; --id) {
    if (!last_.has_member(id) && has_state(id)) {
      come_keys_.push_back(concat("elastic/come/", id));
    }
  }
}

bool ElasticJob::has_state(int64_t id) const {
  const std::string* const settled = store_.table().find(concat("elastic/settled/", id));
  const bool says_so = settled != nullptr && std::stoll(*settled) == last_.number;
  return says_so || (last_.has_member(id) && !last_.fresh.contains(id));
}

bool ElasticJob::is_gone(int64_t id) const {
  return store_.table().find(concat("elastic/gone/", id)) != nullptr;
}

void ElasticJob::check() {
  if (const std::string* const text = store_.table().find(next_key_)) {
    nlohmann::json json = nlohmann::json::parse(*text);
    store::Decision next{.number = last_.number + 1,
                         .members = json.at("members"),
                         .places = json.at("places"),
                         .spares = json.at("spares")};
    next.fresh = json.value("fresh", std::set<int64_t>());
    next.finished = json.value("finished", false);
    check_decision(next);
    last_ = next;
    next_key_ = concat("elastic/round/", last_.number + 1);
    first_came_ = all_wait_since_ = orphaned_since_ = Clock::time_point::max();
    come_keys_.clear();
    for (const int64_t id : last_.members) {
      come_keys_.push_back(concat("elastic/come/", id));
    }
  }
  if (first_came_ == Clock::time_point::max()) {
    if (settings_.breaks > 0) {
      add_other_numbers();
    }
    for (const std::string& key : come_keys_) {
      const std::string* const come = store_.table().find(key);
      if (come != nullptr && std::stoll(*come) > last_.number) {
        first_came_ = simulator_.now();
      }
    }
  }
  check_who_waits();
}

// By what the store held when the decision was made.
void ElasticJob::check_decision(const store::Decision& next) {
  if (next.finished) {
    folder_.finished = true;
    if (!complete()) {
      simulator_.violate(concat("the training is said to be finished with row ", folder_.row, " and ", folder_.saved,
                                " stretches saved of ", settings_.stretches));
    }
    return;
  }
  simulator_.note(concat("round ", next.number, " has ", nlohmann::json(next.members).dump(), ", spares ",
                         nlohmann::json(next.spares).dump()));
  if (next.number == 1 && rounds_before_ > 0) {
    check_first_round_of_store(next);
  }
  std::vector<int64_t> expected; // the order of members that have the state
  for (const int64_t id : last_.members) {
    if (!has_state(id)) {
      continue;
    }
    if (next.has_member(id)) {
      expected.push_back(id);
    } else if (!is_gone(id)) {
      if (first_came_ == Clock::time_point::max()) {
        simulator_.violate(
            concat("round ", next.number, " is begun by one who waits, while number ", id, " of the last round lives"));
      } else if (simulator_.now() - first_came_ < settings_.meeting.late_patience) {
        simulator_.violate(concat("round ", next.number, " leaves out number ", id, ", which is not late"));
      }
    }
  }
  if (!std::equal(expected.begin(), expected.end(), next.members.begin())) {
    simulator_.violate(concat("round ", next.number, ": one that is new ranks before a member"));
  }
  check_left_out(next);
}

// Who is late, or comes back too late over another connection, is left out by others that have the state, and by nobody
// else.
void ElasticJob::check_left_out(const store::Decision& next) {
  const bool goes_on = std::any_of(next.members.begin(), next.members.end(), [&](int64_t id) { return has_state(id); });
  for (auto& [number, process] : processes_) {
    if (process.id == 0 || process.round == 0 || !simulator_.lives(number) ||
        process.round > rounds_before_ + last_.number || next.has_member(process.id)) {
      continue;
    }
    if (!goes_on && !process.late && !process.stale && process.doing == Doing::trains && last_.number > 0 &&
        !was_stopped(number)) {
      simulator_.violate(concat("round ", next.number, " begins without ", simulator_.name(number),
                                ", which trains, and without anybody who has its state"));
    }
    process.late = true;
  }
}

// It has not had the time to come back to the store.
bool ElasticJob::was_stopped(int process) const {
  const auto went_on = went_on_.find(process);
  return paused_.contains(process) ||
         (went_on != went_on_.end() && simulator_.now() - went_on->second < settings_.meeting.start_patience);
}

// One that is new begins nothing in an empty store while others train that can say so.
void ElasticJob::check_first_round_of_store(const store::Decision& next) {
  const auto takes_part = [&](const Process& process) {
    return std::find(next.places.begin(), next.places.end(), process.place) != next.places.end();
  };
  bool any_knows = false;
  bool any_is_left_out = false;
  for (auto& [number, process] : processes_) {
    if (process.round == 0 || !process.knows || !simulator_.lives(number)) {
      continue;
    }
    any_knows = any_knows || takes_part(process);
    if (process.late) {
      continue;
    }
    any_is_left_out =
        any_is_left_out || (!takes_part(process) && process.doing == Doing::trains && !was_stopped(number));
    process.late = !takes_part(process);
  }
  if (any_is_left_out && !any_knows) {
    simulator_.violate("a round begins in the empty store without any of those that train");
  }
}

// Who has come is released in time, and so is who waits when nobody trains any more.
void ElasticJob::check_who_waits() {
  bool all_wait = true;
  bool member_waits = false;
  bool member_lives = false;
  int waiting = 0;
  for (const auto& [number, process] : processes_) {
    if (!simulator_.lives(number)) {
      continue;
    }
    const bool member = process.id != 0 && last_.number > 0 && (last_.has_member(process.id) || has_state(process.id));
    member_lives = member_lives || member;
    if (process.doing == Doing::waits) {
      ++waiting;
      member_waits = member_waits || member;
    } else {
      all_wait =
          all_wait && process.doing == Doing::nothing && process.id == 0 && process.round == 0; // it has just begun
    }
  }
  const auto now = simulator_.now();
  const auto since = [&](Clock::time_point& time, bool condition) {
    time = condition && paused_.empty() ? std::min(time, now) : Clock::time_point::max();
    return time == Clock::time_point::max() ? Clock::duration{} : now - time;
  };
  if (since(all_wait_since_, all_wait && member_waits && waiting >= settings_.meeting.min_ranks) > kSlack) {
    simulator_.violate(concat("all have come for round ", last_.number + 1, ", and it does not begin"));
  }
  if (since(orphaned_since_, waiting >= settings_.meeting.min_ranks && !member_lives && last_.number > 0) >
      settings_.meeting.start_patience + kSlack) {
    simulator_.violate(concat("all members of round ", last_.number, " are gone, and who waits is not released"));
  }
}

struct ElasticJob::World::Shared {
  std::map<int, int> processes;                     // by rank
  std::set<int> left;                               // ranks
  std::map<int64_t, std::map<int, int64_t>> values; // by operation, rank
};

ElasticJob::World::World(ElasticJob& job, const store::Round& round) : job_(job), round_(round) {
  std::weak_ptr<void>& known = job_.worlds_[std::to_string(round.number)];
  shared_ = std::static_pointer_cast<Shared>(known.lock());
  if (!shared_) {
    shared_ = std::make_shared<Shared>();
    known = shared_;
  }
  shared_->processes[round.rank] = job_.simulator_.running();
  try {
    gather(0);
  } catch (...) {
    leave();
    throw;
  }
}

ElasticJob::World::~World() {
  leave();
}

void ElasticJob::World::leave() {
  shared_->left.insert(round_.rank);
  for (const auto& [rank, process] : shared_->processes) {
    job_.simulator_.wake(process);
  }
}

std::vector<int64_t> ElasticJob::World::gather(int64_t value) {
  Simulator& simulator = job_.simulator_;
  simulator.begin_call();
  sleep_for(simulator.delay());
  auto& given = shared_->values[operations_++];
  given[round_.rank] = value;
  simulator.sent();
  for (const auto& [rank, process] : shared_->processes) {
    simulator.wake(process);
  }
  const auto complete = [&] { return std::ssize(given) == round_.size; };
  const auto broken = [&] {
    return std::any_of(shared_->processes.begin(), shared_->processes.end(), [&](const auto& one) {
      return !given.contains(one.first) && (shared_->left.contains(one.first) || !simulator.lives(one.second));
    });
  };
  if (!simulator.block_until(simulator.now() + job_.settings_.world_timeout + job_.settings_.stretch,
                             [&] { return complete() || broken(); }) ||
      !complete()) {
    throw Lost("a member is lost");
  }
  std::vector<int64_t> all;
  for (const auto& [rank, of_rank] : given) {
    all.push_back(of_rank);
  }
  return all;
}

} // namespace trireme::simulation
