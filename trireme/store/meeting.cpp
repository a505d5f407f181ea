#include <trireme/store/meeting.h>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/units.h>

#include <algorithm>
#include <sstream>

namespace trireme::store {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{50};
/// A process that waits longer logs what it waits for.
constexpr milliseconds kQuiet{1000};
constexpr const char* kWhole = "whole";
constexpr const char* kBroken = "broken";

int64_t number_in(const std::optional<std::string>& text) {
  return text ? std::stoll(*text) : 0;
}

} // namespace

FinishedError::FinishedError(int64_t round)
    : Error("elastic", concat("the training was finished in round ", round, " before this process could rejoin."),
            "It ends with status 0: there is nothing left to do.") {}

Meeting::Meeting(MeetingOptions options, std::shared_ptr<Client> client)
    : options_(std::move(options)),
      prefix_(options_.training == 1 ? "elastic/" : concat("elastic/training ", options_.training, '/')),
      client_(std::move(client)) {
  if (options_.min_ranks < 1 || (options_.max_ranks != 0 && options_.max_ranks < options_.min_ranks)) {
    throw InputError("elastic", concat("from ", options_.min_ranks, " to ", options_.max_ranks, " ranks"),
                     "Use at least 1, and as many or more at most (0: any number).");
  }
  if (!client_) {
    client_ = Client::connect(options_.store, options_.secret, options_.job, Clock::now() + options_.start_patience);
  }
}

Meeting::Meeting(MeetingOptions options) : Meeting(std::move(options), nullptr) {}

Meeting::~Meeting() = default; // the store executes the last will

std::string Meeting::key(const char* what) const {
  return prefix_ + what;
}

std::string Meeting::key(const char* what, int64_t number) const {
  return prefix_ + what + '/' + std::to_string(number);
}

void Meeting::announce() {
  id_ = client_->take_number(key("ids"), key("gone/"), "1", key("changes"));
  last_ = newest_decision();
  if (last_.finished) {
    throw FinishedError(last_.number - 1);
  }
  client_->set(key("order", id_), concat(next(), ' ', options_.place));
  continues_ =
      last_.number == 0 ? !options_.state.empty() : options_.state == last_.text(); // else this process was late
  if (continues_) {
    settle();
  }
}

void Meeting::come() {
  if (id_ != 0) {
    client_->set(key("come", id_), std::to_string(next()));
    return;
  }
  announce();
  come();
  client_->add(key("changes"), 1); // after it has joined, so that others see it
}

// The count of rounds may be behind: a process may be killed between its decision and the count.
Decision Meeting::newest_decision() {
  Decision newest;
  for (int64_t number = std::max<int64_t>(1, number_in(client_->find(key("rounds"))));; ++number) {
    const auto text = client_->find(key("round", number));
    if (!text) {
      return newest;
    }
    newest = Decision::parse(*text);
  }
}

View Meeting::look() {
  View view;
  const auto counters = client_->find_all({key("changes"), key("ids")}); // read first: later changes count as new
  view.changes = number_in(counters[0]);
  const int64_t ids = number_in(counters[1]);
  std::vector<std::string> keys;
  for (int64_t id = 1; id <= ids; ++id) {
    for (const char* const what : {"gone", "come", "settled"}) {
      keys.push_back(key(what, id));
    }
  }
  const auto found = client_->find_all(keys);
  for (int64_t id = 1; id <= ids; ++id) {
    const auto* const of = &found[static_cast<size_t>(3 * (id - 1))];
    if (!of[0]) {
      view.living[id] = {number_in(of[1]), of[2] ? std::optional(number_in(of[2])) : std::nullopt};
    }
  }
  return view;
}

void Meeting::propose(const View& view) {
  const std::set<int64_t> come = view.come(next());
  std::vector<std::string> keys;
  for (const int64_t id : come) {
    keys.push_back(key("order", id));
  }
  std::map<int64_t, Order> orders;
  auto id = come.begin();
  for (const auto& text : client_->find_all(keys)) {
    std::istringstream words(text.value_or(""));
    Order& order = orders[*id++];
    words >> order.first_round >> order.place;
  }
  const std::string proposal = next_decision(last_, view, orders, options_.max_ranks).text();
  if (client_->compare_set(key("round", next()), "", proposal) == proposal) {
    client_->set(key("rounds"), std::to_string(next())); // for processes that join later
  }
}

std::optional<Round> Meeting::take(const Decision& decision) {
  const bool was_member = last_.has_member(id_);
  last_ = decision;
  continues_ = false;
  if (decision.finished) {
    throw FinishedError(decision.number - 1);
  }
  const auto mine = std::find(decision.members.begin(), decision.members.end(), id_);
  if (mine != decision.members.end()) {
    changes_ = decision.changes;
    return Round{decision.number, static_cast<int>(mine - decision.members.begin()),
                 static_cast<int>(decision.members.size()), decision.members, decision.places};
  }
  if (decision.spares.contains(id_)) {
    come();
  } else if (was_member) { // it was late, and its state is old
    log::warning("elastic: this process was late for round ", decision.number,
                 ", which began without it; it joins again as a new process");
    client_->set(key("gone", id_), "1");
    id_ = 0;
    come();
  } else { // it joined while others decided
    come();
    client_->add(key("changes"), 1);
  }
  return std::nullopt;
}

void Meeting::say_what_it_waits_for(const View& view) const {
  const auto members = std::ssize(living_members(last_, view));
  if (members == 0) {
    if (last_.number > 0) {
      log::info("elastic: all members of round ", last_.number, " are gone, and the training is not finished; round ",
                next(), " waits ", format_seconds(std::chrono::duration<double>(options_.start_patience).count()),
                " for other processes, then begins with those that have joined");
    }
  } else if (options_.max_ranks != 0 && members >= options_.max_ranks) {
    log::info("elastic: round ", last_.number, " has no room for more than ", options_.max_ranks,
              options_.max_ranks == 1 ? " process" : " processes",
              "; this one waits until one of them is lost, or the training is finished");
  } else if (last_.number == 0) {
    log::info("elastic: the store was lost, and ", members, members == 1 ? " process trains" : " processes train",
              "; waiting for the end of their stretch");
  } else {
    log::info("elastic: waiting for the ", members, members == 1 ? " member" : " members", " of round ", last_.number,
              " to come to the end of their stretch");
  }
}

Round Meeting::next_round() {
  come();
  const auto start = Clock::now();
  auto since = start; // since it joined, or since no member of the last round lived
  bool nobody_trains = false;
  bool said = false;
  for (milliseconds wait(0);; wait = kLook) { // the last one to join does not wait
    if (client_->wait({key("round", next())}, wait)) {
      if (const auto round = take(Decision::parse(client_->find(key("round", next())).value()))) {
        return *round;
      }
      nobody_trains = false;
      continue;
    }
    const View view = look();
    if (living_members(last_, view).empty() != nobody_trains) {
      nobody_trains = !nobody_trains;
      since = nobody_trains ? Clock::now() : start;
    }
    const bool may = may_propose(last_, view, id_);
    const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - since);
    if (may && complete(last_, view, waited,
                        {options_.min_ranks, options_.max_ranks, options_.start_patience, options_.late_patience})) {
      propose(view);
      continue;
    }
    if (const auto come = std::ssize(view.come(next()));
        may && waited >= options_.patience && come < options_.min_ranks) {
      throw PeerError(
          "elastic",
          concat("round ", next(), " cannot begin: ", come, " of at least ", options_.min_ranks,
                 " ranks have joined after ", format_seconds(std::chrono::duration<double>(options_.patience).count())),
          "Start more processes, or allow fewer ranks.");
    }
    if (!may && last_.has_member(id_) && waited >= options_.patience) {
      throw PeerError("elastic",
                      concat("round ", next(), " cannot begin: a member of round ", last_.number,
                             " that has the training's state is alive, but has not joined for ",
                             format_seconds(std::chrono::duration<double>(options_.patience).count())),
                      "It is stopped or hangs: end it; the others then go on without it.");
    }
    if (!said && Clock::now() - start >= kQuiet && !last_.has_member(id_)) {
      said = true;
      say_what_it_waits_for(view);
    }
  }
}

bool Meeting::changed() {
  const auto found = client_->find_all({key("changes"), key("round", next())});
  if (found[1]) {
    return true;
  }
  if (number_in(found[0]) == changes_) {
    return false;
  }
  const View view = look();
  if (!is_whole(last_, view)) {
    return true;
  }
  const auto come = view.come(next());
  const auto is_new = [&](int64_t id) { return !last_.has_member(id) && !last_.spares.contains(id); };
  if (has_room() && std::any_of(come.begin(), come.end(), is_new)) {
    return true;
  }
  changes_ = view.changes; // nothing relevant changed
  return false;
}

bool Meeting::conclude(bool well) {
  const std::string verdict = key("verdict", last_.number);
  if (!well) {
    client_->compare_set(verdict, "", kBroken);
  } else if (client_->add(key("well", last_.number), 1) == std::ssize(last_.members)) {
    client_->compare_set(verdict, "", kWhole);
  }
  for (const auto since = Clock::now(); !client_->wait({verdict}, kLook);) {
    if (!is_whole(last_, look()) || Clock::now() - since >= options_.late_patience) {
      client_->compare_set(verdict, "", kBroken); // unless the last one has just reported success
    }
  }
  const bool whole = client_->find(verdict) == kWhole;
  if (whole) {
    settle();
  }
  return whole;
}

void Meeting::settle() {
  if (continues_ || last_.fresh.contains(id_)) {
    client_->set(key("settled", id_), std::to_string(last_.number));
  }
}

bool Meeting::left_behind() {
  return client_->find(key("round", next())).has_value();
}

bool Meeting::finish() {
  Decision end;
  end.number = next();
  end.finished = true;
  const std::string text = end.text();
  const std::string decided = client_->compare_set(key("round", next()), "", text);
  if (decided != text && !Decision::parse(decided).finished) {
    return false;
  }
  client_->set(key("rounds"), std::to_string(next()));
  return true;
}

bool Meeting::wait_for_finish(int first) {
  const bool known = first < std::ssize(last_.members); // false if the store was lost since
  const int64_t saves = known ? last_.members[static_cast<size_t>(first)] : 0;
  const auto mine = std::find(last_.members.begin(), last_.members.end(), id_);
  const auto start = Clock::now();
  bool said = false;
  while (!client_->wait({key("round", next())}, kLook)) {
    const View view = look();
    const auto gone = [&](int64_t id) { return !view.living.contains(id); };
    const auto waited = Clock::now() - start;
    const bool late = waited >= options_.patience;
    const bool my_turn =
        std::all_of(last_.members.begin(), mine, [&](int64_t id) { return gone(id) || (late && id == saves); });
    if (my_turn && (late || (known && gone(saves)))) {
      const bool finished = left_behind(); // a process that has just gone may have finished after the wait
      if (!finished && late) {
        log::warning("elastic: the results of round ", last_.number, " have not been saved for ",
                     format_seconds(std::chrono::duration<double>(options_.patience).count()),
                     ": the rank that saves is slow, stopped or hangs; this process saves them, too");
      }
      return finished;
    }
    if (!said && waited >= kQuiet) {
      said = true;
      log::info("elastic: waiting for rank ", first, " of round ", last_.number, " to save the results");
    }
  }
  return true;
}

} // namespace trireme::store
