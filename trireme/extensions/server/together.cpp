#include <trireme/extensions/server/together.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace trireme::parallel::server {

using nlohmann::json;

Together::Together(rpc::Server& server, const ParameterServerOptions& options)
    : Replies(server), options_(options), together_(options.server.together()) {}

int Together::worker_of(const PendingRequest& waiting) const {
  const std::vector<int> joined = workers_.of(waiting.event.client);
  const int number = waiting.header.value("worker", joined.empty() ? -1 : joined.front());
  if (std::find(joined.begin(), joined.end(), number) == joined.end()) {
    throw InputError("server", concat("worker ", number, " has not joined over this connection"));
  }
  return number;
}

void Together::pull(const PendingRequest& waiting) {
  waiting.header.value("clock", int64_t{0});
  waiting.header.value("first_clock", int64_t{0});
  pulls_.push_back(waiting);
  if (const auto step = step_of_first(waiting.header)) {
    for (const int number : workers_.of(waiting.event.client)) {
      gives_up(number, *step - 1);
    }
    close_if_complete();
    answer_sums();
  }
  answer_pulls();
}

void Together::answer_pulls() {
  if (pulls_.empty()) {
    return;
  }
  std::vector<PendingRequest> still;
  const int64_t least = least_that_comes();
  if (first_clock_ && *first_clock_ < least) {
    log::warning("server ", options_.place, ": lost the updates of its share up to clock ", least,
                 " of server 0: all workers that could have committed them are gone");
    first_clock_ = least;
    drop_round();
  }
  for (PendingRequest& pull : std::exchange(pulls_, {})) {
    const bool is_there = clock_ >= pull.header.value("clock", int64_t{0}) &&
                          (!first_clock_ || *first_clock_ >= pull.header.value("first_clock", int64_t{0}));
    if (initialized_ && is_there) {
      const std::vector<int> joined = workers_.of(pull.event.client);
      answer_with_values(pull, {{"status", "ok"}, {"step", step_of(joined.empty() ? 0 : joined.front())}});
    } else {
      still.push_back(std::move(pull));
    }
  }
  pulls_ = std::move(still);
}

// Returns the largest clock of server 0 that workers wait for, if all present workers do; then no worker can make these
// steps on this server, and its values stand for that clock. Else 0.
int64_t Together::least_that_comes() const {
  std::vector<int> wait;
  int64_t least = 0;
  for (const PendingRequest& pull : pulls_) {
    const std::vector<int> joined = workers_.of(pull.event.client);
    wait.insert(wait.end(), joined.begin(), joined.end());
    least = std::max(least, pull.header.value("first_clock", int64_t{0}));
  }
  const std::vector<int> there = workers_.there();
  const auto waits = [&](int number) { return std::find(wait.begin(), wait.end(), number) != wait.end(); };
  const bool all = std::all_of(there.begin(), there.end(), waits);
  return all && !workers_.awaits_any() ? least : 0;
}

void Together::push(const PendingRequest& waiting) {
  const int number = worker_of(waiting);
  check_gradients(waiting);
  check_push(waiting.header);
  if (!initialized_) {
    return refuse(waiting, "there are no values yet: send init or pull first");
  }
  check_room(waiting);
  const auto step = step_of_first(waiting.header);
  int64_t ahead = this->ahead(waiting.header);
  workers_.has_pushed(number, ahead > 0 && round_.closed()
                                  ? std::nullopt
                                  : step); // a push that is ahead of a closed round is sent again
  if (waiting.op() == "push" && ahead == -1 &&
      was_member(number)) { // it did not get the answer of its step, because this server or its connection ended
    return answer_with_values(waiting, last_);
  }
  if (step && ahead > 0 && !round_.closed()) { // this server has lost updates: workers continue from its values
    first_clock_ = step;
    ahead = 0;
    begin_anew();
  }
  if (ahead == 0 && round_.closed() && round_.is_member(number) && !has_committer()) { // the request to commit was lost
    round_.add_committer(number);
    return ask_to_commit(waiting);
  }
  if (step && ahead < 0) { // server 0 repeats the step, or makes it without workers that made it here
    ++counters_.dropped;
    if (!round_.closed()) {
      withdraw(number, "the worker has pushed again");
      round_.reopen(number);
      close_if_complete();
    }
    return answer_stale(waiting);
  }
  if (round_.closed()) {
    ++counters_.dropped;
    late_.push_back(waiting); // its next gradient can be of the values after this round
    return;
  }
  if (ahead != 0) {
    ++counters_.dropped;
    return answer_stale(waiting);
  }
  withdraw(number, "the worker has pushed again");
  round_.push(number, waiting);
  close_if_complete();
  answer_sums();
}

// Server 0's clock identifies the step of a request to another server. That server's own clock does not, once a server
// has lost updates.
std::optional<int64_t> Together::step_of_first(const json& header) const {
  const auto found = header.find("first_clock");
  return options_.place == 0 || !first_clock_ || found == header.end() ? std::nullopt
                                                                       : std::optional(found->get<int64_t>());
}

// Number of steps by which the request is ahead of this server. Below 0: the step was already made here.
int64_t Together::ahead(const json& header) const {
  const auto step = step_of_first(header);
  return step ? *step - *first_clock_ : header.at("clock").get<int64_t>() - clock_;
}

bool Together::was_member(int number) const {
  const auto members = last_.value("members", std::vector<int>());
  return std::find(members.begin(), members.end(), number) != members.end();
}

void Together::answer_late() {
  for (const PendingRequest& late : std::exchange(late_, {})) {
    answer_stale(late);
  }
}

// True if this server decides whose gradients count.
bool Together::decides() const {
  return options_.place == 0 || !round_.wants_commit();
}

bool Together::is_complete() const {
  if (round_.empty() || workers_.awaits_any()) {
    return false;
  }
  const std::vector<int> there = workers_.there();
  const auto is_not_awaited = [this](int number) {
    return round_.has(number) || (options_.place > 0 && first_clock_ && workers_.is_past(number, *first_clock_));
  };
  return std::all_of(there.begin(), there.end(), is_not_awaited);
}

void Together::close_if_complete() {
  if (!together_ || round_.closed() || !is_complete()) {
    return;
  }
  if (decides()) {
    close();
  } else if (!is_hybrid() && !round_.is_added_up()) {
    // Server 0 will find the same members, unless a worker joins or ends.
    round_.add_up(round_.numbers(), *shard_);
    if (!has_committer()) {
      ask_somebody();
    }
  }
}

void Together::look_at_the_time() {
  answer_sums();
  close_if_complete();
  answer_pulls();
  if (!together_ || !is_hybrid()) {
    return;
  }
  const std::chrono::duration<double> patience(options_.server.timeout_s);
  if (!round_.closed() && !round_.empty() && decides() && round_.since_first_push() >= patience) {
    close();
    answer_sums();
  } else if (round_.closed() && round_.since_asked() >= patience) { // the committer may be the late worker of this step
    ask_somebody();
  }
}

void Together::close() {
  round_.add_up(round_.numbers(), *shard_);
  round_.close();
  if (!round_.wants_commit()) {
    finish_as_said(*round_.first_that_said_all());
  } else if (!has_committer()) {
    ask_somebody();
  }
}

bool Together::has_committer() const {
  return workers_.any_is_there(round_.committers());
}

void Together::ask_somebody() {
  const auto number = round_.candidate([this](int one, const PendingRequest& push) { return lives(one, push); });
  if (number && round_.is_added_up()) {
    ask_to_commit(round_.ask(*number, !round_.closed()));
  }
}

void Together::ask_to_commit(const PendingRequest& waiting) {
  json decision = round_.decision();
  decision["status"] = "commit";
  answer(waiting, std::move(decision), 0);
}

// Makes the step without a commit: the mean of the gradients, by what one member's `push_pull` says.
void Together::finish_as_said(const PendingRequest& said) {
  const json header = said.header;
  const json factor = header.value("factor", json(1.0));
  finish_round(header, header.value("lr", default_lr_),
               factor.is_null() ? std::nullopt
                                : std::optional(factor.get<double>() / static_cast<double>(round_.members().size())));
}

void Together::sum(const PendingRequest& waiting) {
  waiting.clock();
  waiting.header.at("members").get<std::vector<int>>();
  waiting.header.value("first_clock", int64_t{0});
  sums_.push_back(waiting);
  answer_sums();
}

// For servers other than 0: answers as soon as the gradients of all members of server 0 are here, or cannot come.
void Together::answer_sums() {
  std::vector<PendingRequest> still;
  for (PendingRequest& sum : std::exchange(sums_, {})) {
    if (const int64_t of_step = ahead(sum.header); of_step < 0) { // another member has already committed
      const bool was_last = of_step == -1 && clock_ > load_.clock;
      answer(sum, was_last ? json{{"status", "ok"}, {"squared_norm", last_.value("squared_norm", json())}}
                           : json{{"status", "done"}});
      continue;
    } else if (of_step > 0 && round_.closed()) { // another member is about to commit the step before
      still.push_back(std::move(sum));
      continue;
    }
    if (!round_.closed()) {
      const auto step = step_of_first(sum.header);
      std::vector<int> here;
      bool comes = false;
      for (const int number : sum.header.at("members").get<std::vector<int>>()) {
        if (round_.has(number)) {
          here.push_back(number);
        } else {
          comes = comes || workers_.may_bring(number, step);
        }
      }
      if (comes) {
        still.push_back(std::move(sum));
        continue;
      }
      if (here.empty()) {
        answer(sum, {{"status", "missing"}});
        continue;
      }
      add_up_again(here);
      round_.close();
      drop_others();
    }
    for (const int number : workers_.of(sum.event.client)) {
      round_.add_committer(number);
    }
    answer(sum, {{"status", "ok"}, {"squared_norm", round_.squared_norm()}, {"members", round_.members()}});
  }
  sums_ = std::move(still);
}

// Sums these members' gradients. False if a push is missing.
bool Together::add_up_again(const std::vector<int>& members) {
  if (round_.is_added_up() && (round_.closed() || round_.members() == members)) {
    return true;
  }
  if (members.empty() ||
      !std::all_of(members.begin(), members.end(), [this](int number) { return round_.has(number); })) {
    return false;
  }
  round_.add_up(members, *shard_);
  return true;
}

// Drops pushes that are not in the sum: they came too late for server 0.
void Together::drop_others() {
  for (auto& [number, late] :
       round_.take([this](int number, const PendingRequest&) { return !round_.is_member(number); })) {
    ++counters_.dropped;
    late_.push_back(std::move(late));
  }
}

void Together::take_back(const PendingRequest& waiting) {
  const int number = worker_of(waiting);
  if (const auto step = step_of_first(waiting.header)) {
    gives_up(number, *step);
  }
  if (!round_.closed() && round_.has(number)) { // else the step answers it, or has
    for (const auto& [of, one] : round_.take([number](int of, const PendingRequest&) { return of == number; })) {
      ++counters_.dropped;
      answer_stale(one);
    }
    round_.reopen(number);
    close_if_complete();
    answer_sums();
  }
  answer(waiting, {{"status", "withdrawn"}});
}

void Together::commit(const PendingRequest& waiting) {
  const int64_t of_step = ahead(waiting.header);
  const auto members = waiting.header.value("members", round_.members());
  const auto lr = waiting.header.at("lr").get<double>();
  const json& factor = waiting.header.at("factor");
  if (of_step >= 0) {                // else another worker has already committed
    std::vector<int> here = members; // a restarted worker may have withdrawn its gradient
    std::erase_if(here, [this](int number) { return !round_.has(number); });
    const bool has_sum = of_step == 0 && (add_up_again(members) || add_up_again(here));
    if (!has_sum &&
        step_of_first(waiting.header)) { // this server has lost the sum: its values tell the worker that it is behind
      return answer_with_values(waiting, {{"status", "ok"}});
    }
    if (!has_sum) {
      return refuse(waiting, concat("there is no sum to commit for clock ", waiting.clock(),
                                    "; this server is at clock ", clock_));
    }
    finish_round(waiting.header, lr, factor.is_null() ? std::nullopt : std::optional(factor.get<double>()));
  }
  answer_with_values(waiting, {{"status", "ok"}});
}

void Together::finish_round(const json& header, double lr, std::optional<double> factor) {
  last_ = round_.decision();
  if (const auto norm = header.find("squared_norm"); norm != header.end()) {
    last_["squared_norm_of_all"] = *norm;
  }
  if (factor) {
    shard_->step(lr, betas_in(header), *factor);
  }
  last_["steps"] = shard_->steps();
  ++clock_;
  first_clock_ = options_.place == 0 ? clock_ : header.value("first_clock", clock_ - 1) + 1;
  Round done = std::exchange(round_, {});
  count_update(); // before any worker gets the values
  counters_.accepted += std::ssize(done.members());
  for (const auto& [number, one] : done.take([](int, const PendingRequest&) { return true; })) {
    if (done.is_member(number)) {
      answer_with_values(one, last_);
    } else {
      ++counters_.dropped;
      late_.push_back(one);
    }
  }
  answer_late();
  answer_pulls();
}

void Together::forget_requests(uint64_t client) {
  for (auto* const requests : {&pulls_, &sums_, &late_}) {
    forget(*requests, client);
  }
}

void Together::forget(std::vector<PendingRequest>& requests, uint64_t client) {
  const auto first = std::stable_partition(requests.begin(), requests.end(),
                                           [&](const PendingRequest& one) { return one.event.client != client; });
  std::for_each(first, requests.end(), [&](const PendingRequest& one) { refuse(one, "the worker has left"); });
  requests.erase(first, requests.end());
}

void Together::withdraw(int number, const char* why) {
  for (const auto& [of, one] : round_.take([number](int of, const PendingRequest&) { return of == number; })) {
    refuse(one, why);
  }
}

void Together::commits_no_more(int number) {
  round_.remove_committer(number); // another worker must commit
  if ((round_.closed() || (!decides() && round_.is_added_up())) && !has_committer()) {
    ask_somebody();
  }
}

// Server 0 has continued without this worker's gradient, or repeated the step. If no other worker knows the sum, this
// server loses the step.
void Together::gives_up(int number, int64_t step) {
  workers_.has_behind_it(number, step);
  commits_no_more(number);
  if (round_.closed() && !has_committer()) {
    lose_round();
  }
}

void Together::without(int number) {
  commits_no_more(number);
  if (!round_.closed() && decides() && round_.has(number)) {
    // Withdraws only if this server decides. Another server that decides may count this gradient and must find it here;
    // the member that is asked to commit, or sends `sum`, reports whether it does.
    withdraw(number, "the worker has left");
    ++counters_.dropped;
  } else if (round_.closed() && !has_committer()) {
    const PendingRequest* const said = round_.first_that_said_all();
    if (said != nullptr && workers_.any_is_there(round_.members())) {
      finish_as_said(*said);
    } else {
      lose_round();
    }
  }
  close_if_complete();
  answer_sums();
  answer_pulls();
}

void Together::begin_anew() {
  drop_round();
  answer_pulls();
  answer_sums();
}

void Together::drop_round() {
  Round before = std::exchange(round_, {});
  for (const auto& [number, one] : before.take([](int, const PendingRequest&) { return true; })) {
    ++counters_.dropped;
    answer_stale(one);
  }
  answer_late();
}

void Together::lose_round() {
  log::warning("server ", options_.place, ": lost the update of clock ", clock_,
               ": all workers that could have committed it are gone");
  counters_.lost += std::ssize(round_.members());
  round_ = {};
  answer_late();
}

} // namespace trireme::parallel::server
