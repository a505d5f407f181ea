#include <trireme/store/meeting.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>
#include <tuple>

namespace trireme::store {
namespace {

constexpr std::chrono::milliseconds kLook{50};

std::string meeting_key(const char* what, int64_t number) {
  return concat("elastic/", what, '/', number);
}

constexpr const char* kIds = "elastic/ids";
constexpr const char* kChanges = "elastic/changes";
constexpr const char* kRounds = "elastic/rounds";
constexpr const char* kWhole = "whole";
constexpr const char* kBroken = "broken";

int64_t number_in(const std::optional<std::string>& text) {
  return text ? std::stoll(*text) : 0;
}

bool includes(const std::set<int64_t>& all, const std::set<int64_t>& some) {
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

} // namespace

Meeting::Meeting(MeetingOptions options) : options_(std::move(options)) {
  if (options_.min_ranks < 1 || (options_.max_ranks != 0 && options_.max_ranks < options_.min_ranks)) {
    throw InputError("elastic", concat("from ", options_.min_ranks, " to ", options_.max_ranks, " ranks"), "Use at least 1, and as many or more at most (0: any number).");
  }
  client_ = Client::connect(options_.store, options_.secret, options_.job, Clock::now() + options_.start_patience);
}

Meeting::~Meeting() = default; // the store carries out the last will

void Meeting::enter() {
  id_ = client_->add(kIds, 1);
  client_->last_will(meeting_key("gone", id_), "1", kChanges);
  wanted_ = number_in(client_->find(kRounds)) + 1;
  client_->set(meeting_key("order", id_), concat(wanted_, ' ', options_.place));
}

Meeting::View Meeting::look() {
  View view;
  const auto counters = client_->find_all({kChanges, kIds}); // changes first: what happens from here on is one more
  view.changes = number_in(counters[0]);
  const int64_t ids = number_in(counters[1]);
  std::vector<std::string> keys;
  for (int64_t id = 1; id <= ids; ++id) {
    keys.push_back(meeting_key("gone", id));
    keys.push_back(meeting_key("come", id));
  }
  const auto found = client_->find_all(keys);
  for (int64_t id = 1; id <= ids; ++id) {
    const auto& gone = found[static_cast<size_t>(2 * id - 2)];
    const auto& come = found[static_cast<size_t>(2 * id - 1)];
    if (!gone) {
      view.living.insert(id);
      if (number_in(come) >= wanted_) {
        view.come.insert(id);
      }
    }
  }
  return view;
}

bool Meeting::complete(const View& view, Clock::time_point since) const {
  const auto waited = Clock::now() - since;
  const auto come = std::ssize(view.come);
  if (come < options_.min_ranks || (wanted_ == 1 && come < options_.max_ranks && waited < options_.start_patience)) {
    return false;
  }
  return view.come == view.living || waited >= options_.late_patience;
}

void Meeting::propose(const View& view) {
  std::vector<std::string> keys;
  for (const int64_t id : view.come) {
    keys.push_back(meeting_key("order", id));
  }
  std::vector<std::tuple<int64_t, int, int64_t>> come; // first round, place, number
  auto id = view.come.begin();
  for (const auto& text : client_->find_all(keys)) {
    std::istringstream words(text.value_or(""));
    auto& [first, place, number] = come.emplace_back(0, 0, *id++);
    words >> first >> place;
  }
  std::sort(come.begin(), come.end());
  nlohmann::json round = {{"members", nlohmann::json::array()}, {"places", nlohmann::json::array()}, {"spares", nlohmann::json::array()}, {"changes", view.changes}};
  for (const auto& [first, place, number] : come) {
    if (options_.max_ranks == 0 || std::ssize(round["members"]) < options_.max_ranks) {
      round["members"].push_back(number);
      round["places"].push_back(place);
    } else {
      round["spares"].push_back(number);
    }
  }
  const std::string proposal = round.dump();
  if (client_->compare_set(meeting_key("round", wanted_), "", proposal) == proposal) {
    client_->set(kRounds, std::to_string(wanted_)); // for those who come later
  }
}

std::optional<Round> Meeting::take(const std::string& decision) {
  const nlohmann::json round = nlohmann::json::parse(decision);
  const auto members = round.at("members").get<std::vector<int64_t>>();
  const auto spares = round.at("spares").get<std::set<int64_t>>();
  const auto mine = std::find(members.begin(), members.end(), id_);
  if (mine != members.end()) {
    members_ = {members.begin(), members.end()};
    spares_ = spares;
    changes_ = round.at("changes");
    return Round{wanted_, static_cast<int>(mine - members.begin()), static_cast<int>(members.size()), members, round.at("places").get<std::vector<int>>()};
  }
  if (spares.contains(id_)) {
    client_->set(meeting_key("come", id_), std::to_string(++wanted_));
  } else { // it was late: the others have gone on, and what it has is old
    client_->set(meeting_key("gone", id_), "1");
    enter();
    client_->set(meeting_key("come", id_), std::to_string(wanted_));
    client_->add(kChanges, 1);
  }
  return std::nullopt;
}

Round Meeting::next_round() {
  if (id_ == 0) {
    enter();
    client_->set(meeting_key("come", id_), std::to_string(wanted_));
    client_->add(kChanges, 1); // the others hear of it when this process has come
  } else {
    client_->set(meeting_key("come", id_), std::to_string(++wanted_));
  }
  const auto since = Clock::now();
  for (auto wait = std::chrono::milliseconds(0);; wait = kLook) { // the last one to come does not wait
    const bool decided = client_->wait({meeting_key("round", wanted_)}, wait);
    if (decided) {
      if (const auto round = take(client_->find(meeting_key("round", wanted_)).value())) {
        return *round;
      }
      continue;
    }
    const View view = look();
    if (complete(view, since)) {
      propose(view);
    } else if (Clock::now() - since >= options_.patience && std::ssize(view.come) < options_.min_ranks) {
      throw PeerError("elastic", concat("round ", wanted_, " cannot begin: ", view.come.size(), " of at least ", options_.min_ranks, " ranks are there after ",
                                        format_seconds(std::chrono::duration<double>(options_.patience).count())),
                      "Start more processes, or allow fewer ranks.");
    }
  }
}

bool Meeting::changed() {
  if (number_in(client_->find(kChanges)) == changes_) {
    return false;
  }
  const View view = look();
  if (!includes(view.living, members_)) {
    return true;
  }
  const bool room = options_.max_ranks == 0 || std::ssize(members_) < options_.max_ranks;
  std::set<int64_t> known = members_;
  known.insert(spares_.begin(), spares_.end());
  if (room && !includes(known, view.living)) {
    return true;
  }
  changes_ = view.changes; // nothing that matters
  return false;
}

bool Meeting::conclude(bool well) {
  const std::string verdict = meeting_key("verdict", wanted_);
  if (!well) {
    client_->compare_set(verdict, "", kBroken);
  } else if (client_->add(meeting_key("well", wanted_), 1) == std::ssize(members_)) {
    client_->compare_set(verdict, "", kWhole);
  }
  for (const auto since = Clock::now(); !client_->wait({verdict}, kLook);) {
    if (!includes(look().living, members_) || Clock::now() - since >= options_.late_patience) {
      client_->compare_set(verdict, "", kBroken); // unless the last one has just said well
    }
  }
  return client_->find(verdict) == kWhole;
}

} // namespace trireme::store
