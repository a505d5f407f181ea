#include <trireme/parallel/server/parameter_server.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/parallel/server/replies.h>
#include <trireme/parallel/server/requests.h>
#include <trireme/parallel/server/round.h>
#include <trireme/parallel/server/shard.h>
#include <trireme/parallel/server/snapshot.h>
#include <trireme/parallel/server/workers.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::parallel::server {
namespace {

using nlohmann::json;
using Seconds = std::chrono::duration<double>;

constexpr std::chrono::milliseconds kLook{50};

class Service : private Replies {
 public:
  Service(rpc::Server& server, const ParameterServerOptions& options) : Replies(server), options_(options), together_(options.server.together()) {
    first_clock_ = together_ ? first_clock_ : std::nullopt;
    if (!options_.folder.empty() && std::filesystem::exists(snapshot_file(options_.folder, options_.place))) {
      go_on();
    }
  }

  Counters run() {
    using std::chrono::milliseconds;
    const bool hurries = options_.server.mode == ServerOptions::Mode::hybrid;
    const milliseconds look = hurries ? std::clamp(milliseconds(static_cast<int64_t>(options_.server.timeout_s * 250)), milliseconds(1), kLook) : kLook;
    while (!is_over()) {
      if (auto event = server_.next(look)) {
        take(std::move(*event));
      }
      close_in_time();
    }
    if (shard_ && updates_kept_ != counters_.updates) {
      keep();
    }
    return counters_;
  }

 private:
  bool is_over() const {
    if (options_.stop != nullptr && options_.stop->load()) {
      return true;
    }
    return !options_.until_stopped && workers_.all_have_ended();
  }

  void take(rpc::Event event) {
    if (event.kind == rpc::Event::Kind::gone) {
      gone(event.client);
      return;
    }
    Waiting waiting{std::move(event), {}, -1};
    try {
      waiting.header = json::parse(waiting.event.header);
      waiting.header.value("have", int64_t{0}); // where it is no number, now and not when others are answered
      take(waiting, waiting.header.at("op").get<std::string>());
    } catch (const json::exception& error) {
      refuse(waiting, concat("the header is not what docs/parameter_server.md says: ", error.what()));
    } catch (const Error& error) {
      refuse(waiting, error.what());
    }
  }

  void take(const Waiting& waiting, const std::string& op) {
    if (op == "join") {
      join(waiting);
    } else if (!shard_) {
      refuse(waiting, "join comes first");
    } else if (op == "init") {
      init(waiting);
    } else if (op == "pull") {
      waiting.header.value("clock", int64_t{0});
      waiting.header.value("first_clock", int64_t{0});
      pulls_.push_back(waiting);
      answer_pulls();
    } else if (op == "push") {
      push(waiting);
    } else if (op == "sum") {
      waiting.clock();
      waiting.header.at("members").get<std::vector<int>>();
      sums_.push_back(waiting);
      answer_sums();
    } else if (op == "commit") {
      commit(waiting);
    } else if (op == "push_pull") {
      together_ ? push(waiting) : step_alone(waiting);
    } else if (op == "get_arrays") {
      get_arrays(waiting);
    } else if (op == "set") {
      set(waiting);
    } else if (op == "status") {
      answer(waiting, status());
    } else if (op == "leave") {
      leave(waiting);
    } else {
      refuse(waiting, concat("there is no op \"", op, '"'));
    }
  }

  json status() const {
    return {{"status", "ok"},     {"updates", counters_.updates}, {"accepted", counters_.accepted}, {"dropped", counters_.dropped},
            {"lost", counters_.lost}, {"largest_staleness", counters_.largest_staleness}, {"live", workers_.there()}, {"steps", shard_->steps()}};
  }

  void join(const Waiting& waiting) {
    const json& header = waiting.header;
    std::vector<ParameterInfo> parameters = read_parameters(header.at("parameters"));
    const int number = header.at("worker"), workers = header.at("workers");
    if (number < 0 || number >= workers) {
      return refuse(waiting, concat("worker ", number, " of ", workers));
    }
    if (!shard_) {
      begin(parameters, header.at("optimizer").dump());
    } else if (parameters != shard_->parameters()) {
      return refuse(waiting, "the worker's parameters are not those of the workers before it: the same model on all of them, please");
    }
    if (workers_.is_there(number) && !workers_.is_of(number, waiting.event.client)) {
      log::warning("worker ", number, " has joined again over another connection");
    }
    workers_.join(number, workers, waiting.event.client, goes_on_);
    answer(waiting, {{"status", "ok"}, {"initialized", initialized_}, {"pieces", pieces_of(*shard_)}, {"bytes", shard_->share().bytes}, {"arrays", shard_->arrays()},
                     {"array_bytes", shard_->array_bytes()}, {"server", options_.place}, {"servers", options_.server.servers}, {"mode", ServerOptions::name(options_.server.mode)},
                     {"together", together_}, {"steps", shard_->steps()}});
  }

  void begin(const std::vector<ParameterInfo>& parameters, const std::string& optimizer) {
    std::vector<Share> shares = share_out(parameters, static_cast<int>(options_.server.servers));
    optimizer_ = optimizer;
    const optim::OptimizerOptions read = options_.read_optimizer(optimizer);
    default_lr_ = read.lr();
    shard_.emplace(parameters, std::move(shares.at(options_.place)), read);
  }

  void init(const Waiting& waiting) {
    if (!initialized_) {
      shard_->check(waiting.event.body, std::nullopt);
      shard_->set_values(waiting.event.body);
      initialized_ = true;
      keep(); // a server that ends before its first update has them
    }
    answer(waiting, {{"status", "ok"}});
    answer_pulls();
  }

  int worker_of(const Waiting& waiting) const {
    const std::vector<int> joined = workers_.of(waiting.event.client);
    const int number = waiting.header.value("worker", joined.empty() ? -1 : joined.front());
    if (std::find(joined.begin(), joined.end(), number) == joined.end()) {
      throw InputError("server", concat("worker ", number, " has not joined over this connection"));
    }
    return number;
  }

  void answer_pulls() {
    std::vector<Waiting> still;
    for (Waiting& pull : std::exchange(pulls_, {})) {
      const bool is_there = clock_ >= pull.header.value("clock", int64_t{0}) && (!first_clock_ || *first_clock_ >= pull.header.value("first_clock", int64_t{0}));
      if (initialized_ && is_there) {
        answer_with_values(pull, {{"status", "ok"}, {"steps", shard_->steps()}});
      } else {
        still.push_back(std::move(pull));
      }
    }
    pulls_ = std::move(still);
  }

  // -- Workers that step together. A clock: pushes, then somebody closes it and says whose gradients count, then a commit steps.

  void push(const Waiting& waiting) {
    const int number = worker_of(waiting);
    check_gradients(waiting);
    check_push(waiting.header);
    if (!initialized_) {
      return refuse(waiting, "there are no values yet: init or pull first");
    }
    const int64_t clock = waiting.clock();
    if (waiting.op() == "push" && clock == clock_ - 1 && was_member(number)) { // it has not heard of its step, because this server or its connection has ended
      return answer(waiting, last_);
    }
    if (clock != clock_ || round_.closed()) {
      ++counters_.dropped;
      // The values that the next gradient can be of: those after the step that is under way.
      return waiting.event.room.empty() || round_.closed() ? answer_stale(waiting) : answer_with_values(waiting, {{"status", "stale"}, {"loss", number_in(waiting.header, "loss")}});
    }
    round_.push(number, waiting);
    close_if_complete();
    answer_sums();
  }
  bool was_member(int number) const {
    const auto members = last_.value("members", std::vector<int>());
    return std::find(members.begin(), members.end(), number) != members.end();
  }
  void answer_stale(const Waiting& waiting) {
    if (waiting.event.room.empty()) {
      answer(waiting, {{"status", "stale"}, {"next", clock_ + (round_.closed() ? 1 : 0)}});
    } else {
      late_.push_back(waiting); // with the values of the next clock
    }
  }

  // Whether it is this server that says whose gradients count.
  bool decides() const {
    return options_.place == 0 || !round_.wants_commit();
  }
  bool is_complete() const {
    const std::vector<int> there = workers_.there();
    return !round_.empty() && !workers_.awaits_any() && std::all_of(there.begin(), there.end(), [this](int number) { return round_.has(number); });
  }
  void close_if_complete() {
    if (together_ && !round_.closed() && is_complete() && decides()) {
      close();
    }
  }
  void close_in_time() {
    close_if_complete();
    answer_alone();
    const bool is_open = together_ && !round_.closed() && !round_.empty();
    if (options_.server.mode == ServerOptions::Mode::hybrid && is_open && decides() && round_.since_first_push() >= Seconds(options_.server.timeout_s)) {
      close();
      answer_sums();
    }
  }

  void close() {
    const bool wants_commit = round_.wants_commit();
    round_.add_up(round_.numbers(), *shard_);
    if (!wants_commit) {
      finish_as_said();
      return;
    }
    for (const Waiting& one : round_.take([](int, const Waiting& push) { return push.op() == "push"; })) { // the others are answered after the step
      answer(one, round_.decision());
    }
  }

  // Where nobody looks at the sum: the mean, by what the first of the members has said.
  void finish_as_said() {
    const json& header = round_.first().header;
    const json factor = header.value("factor", json(1.0));
    finish_round(header, header.value("lr", default_lr_), factor.is_null() ? std::nullopt : std::optional(factor.get<double>() / static_cast<double>(round_.members().size())));
  }

  // Of other servers: as soon as the gradients of all that the first server names are here, or cannot come.
  void answer_sums() {
    std::vector<Waiting> still;
    for (Waiting& sum : std::exchange(sums_, {})) {
      const auto clock = sum.header.at("clock").get<int64_t>();
      if (clock < clock_) { // another member was faster, and has committed
        answer(sum, clock == clock_ - 1 ? json{{"status", "ok"}, {"squared_norm", last_.value("squared_norm", json())}} : json{{"status", "done"}});
        continue;
      }
      if (!round_.closed()) {
        std::vector<int> here;
        bool comes = false;
        for (const int number : sum.header.at("members").get<std::vector<int>>()) {
          if (round_.has(number)) {
            here.push_back(number);
          } else {
            comes = comes || workers_.may_push(number);
          }
        }
        if (comes) {
          still.push_back(std::move(sum));
          continue;
        }
        if (here.empty()) {
          refuse(sum, "none of the members has pushed here");
          continue;
        }
        round_.add_up(here, *shard_);
        drop_others();
      }
      answer(sum, {{"status", "ok"}, {"squared_norm", round_.squared_norm()}, {"members", round_.members()}});
    }
    sums_ = std::move(still);
  }

  // Pushes that are part of the sum are answered, but for those that want values; the others came too late elsewhere.
  void drop_others() {
    for (const Waiting& late : round_.take([this](int number, const Waiting&) { return !round_.is_member(number); })) {
      ++counters_.dropped;
      answer_stale(late);
    }
    for (const Waiting& one : round_.take([](int, const Waiting& push) { return push.op() == "push"; })) {
      answer(one, {{"status", "accepted"}});
    }
  }

  void commit(const Waiting& waiting) {
    const auto clock = waiting.header.at("clock").get<int64_t>();
    if (clock < clock_) { // another worker's has come before
      return answer_with_values(waiting, {{"status", "ok"}, {"steps", shard_->steps()}});
    }
    if (!round_.closed()) {
      return refuse(waiting, concat("there is no sum to commit for clock ", clock, ", and this server is at clock ", clock_));
    }
    const json& factor = waiting.header.at("factor");
    finish_round(waiting.header, waiting.header.at("lr").get<double>(), factor.is_null() ? std::nullopt : std::optional(factor.get<double>()));
    answer_with_values(waiting, {{"status", "ok"}, {"steps", shard_->steps()}});
  }

  void finish_round(const json& header, double lr, std::optional<double> factor) {
    last_ = round_.decision();
    if (factor) {
      shard_->step(lr, betas_in(header), *factor);
    }
    ++clock_;
    first_clock_ = options_.place == 0 ? clock_ : header.value("first_clock", clock_ - 1) + 1;
    Round done = std::exchange(round_, {});
    keep_if_due(); // before anybody sees the values
    counters_.accepted += std::ssize(done.members());
    for (const Waiting& one : done.take([](int, const Waiting&) { return true; })) {
      answer_with_values(one, {{"status", "accepted"}, {"loss", done.loss()}, {"steps", shard_->steps()}});
    }
    for (const Waiting& late : std::exchange(late_, {})) {
      answer_with_values(late, {{"status", "stale"}, {"loss", number_in(late.header, "loss")}});
    }
    answer_pulls();
  }

  // -- Workers that do not wait for each other.

  void step_alone(const Waiting& waiting) {
    const int number = worker_of(waiting);
    check_gradients(waiting);
    check_push(waiting.header);
    const json& header = waiting.header;
    if (!initialized_) {
      return refuse(waiting, "there are no values yet: init or pull first");
    }
    counters_.largest_staleness = std::max(counters_.largest_staleness, clock_ - header.at("clock").get<int64_t>());
    const json factor = header.value("factor", json(1.0));
    if (!factor.is_null()) {
      shard_->begin_sum();
      shard_->add(waiting.event.body, header.value("unused", std::vector<int64_t>()), counts_in(header));
      shard_->step(header.value("lr", default_lr_), betas_in(header), factor.get<double>());
    }
    ++clock_;
    workers_.count_push(number);
    ++counters_.accepted;
    alone_.push_back(waiting);
    alone_.back().worker = number;
    keep_if_due();
    answer_pulls();
    answer_alone();
  }

  void answer_alone() {
    std::vector<Waiting> still;
    for (Waiting& one : std::exchange(alone_, {})) {
      const bool waits = options_.server.mode == ServerOptions::Mode::stale && (workers_.awaits_any() || workers_.ahead(one.worker) > options_.server.staleness);
      if (waits) {
        still.push_back(std::move(one));
      } else {
        answer_with_values(one, {{"status", "accepted"}, {"loss", number_in(one.header, "loss")}, {"steps", shard_->steps()}});
      }
    }
    alone_ = std::move(still);
  }

  // -- States, for checkpoints.

  void get_arrays(const Waiting& waiting) {
    if (std::ssize(waiting.event.room) != shard_->array_bytes() * std::ssize(shard_->arrays())) {
      return refuse(waiting, "room of another size than all arrays");
    }
    shard_->get_arrays(waiting.event.room);
    answer(waiting, {{"status", "ok"}, {"steps", shard_->steps()}});
  }

  // Parameters, then all arrays.
  void set(const Waiting& waiting) {
    const auto bytes = static_cast<size_t>(shard_->share().bytes);
    if (waiting.event.body.size() != bytes + static_cast<size_t>(shard_->array_bytes()) * shard_->arrays().size()) {
      return refuse(waiting, "a body of another size than values and all arrays");
    }
    shard_->set_values(waiting.event.body.first(bytes));
    shard_->set_arrays(waiting.event.body.subspan(bytes));
    shard_->set_steps(waiting.header.at("steps").get<int64_t>());
    initialized_ = true;
    keep();
    answer(waiting, {{"status", "ok"}});
    answer_pulls();
  }

  // -- Workers that end.

  void leave(const Waiting& waiting) {
    const int number = worker_of(waiting);
    workers_.leave(number);
    answer(waiting, status());
    without(number);
  }

  void gone(uint64_t client) {
    std::erase_if(pulls_, [&](const Waiting& one) { return one.event.client == client; });
    std::erase_if(sums_, [&](const Waiting& one) { return one.event.client == client; });
    std::erase_if(late_, [&](const Waiting& one) { return one.event.client == client; });
    std::erase_if(alone_, [&](const Waiting& one) { return one.event.client == client; });
    for (const int number : workers_.of(client)) {
      workers_.leave(number);
      ++counters_.workers_lost;
      log::warning("server ", options_.place, ": worker ", number, " is gone at clock ", clock_, "; the others go on without it");
      without(number);
    }
  }

  // A gradient that it has pushed, and that has not become part of a sum, is not counted: nobody was told that it is accepted.
  void without(int number) {
    if (!round_.closed()) {
      for (const Waiting& one : round_.take([&](int of, const Waiting&) { return of == number; })) {
        refuse(one, "the worker has left");
        ++counters_.dropped;
      }
    } else if (!round_.wants_commit() && !workers_.any_is_there(round_.committers())) { // nobody can say a factor any more
      if (!round_.empty() && workers_.any_is_there(round_.members())) {
        finish_as_said();
      } else {
        log::warning("server ", options_.place, ": the update of clock ", clock_, " is lost: all workers that could have committed it are gone");
        counters_.lost += std::ssize(round_.members());
        round_ = {};
        for (const Waiting& late : std::exchange(late_, {})) {
          answer_with_values(late, {{"status", "stale"}, {"loss", number_in(late.header, "loss")}});
        }
      }
    }
    close_if_complete();
    answer_sums();
    answer_alone();
  }

  // -- Snapshots.
  void keep_if_due() {
    ++counters_.updates;
    if (options_.server.snapshot_every > 0 && counters_.updates % options_.server.snapshot_every == 0) {
      keep();
    }
  }
  // A full disk does not end the job: the next one may find room.
  void keep() {
    updates_kept_ = counters_.updates;
    if (options_.folder.empty() || !initialized_) {
      return;
    }
    try {
      save_snapshot(snapshot_file(options_.folder, options_.place), {options_.place, options_.server.servers, clock_, shard_->steps(), shard_->parameters(), optimizer_, last_}, *shard_);
    } catch (const std::exception& error) {
      log::error("server ", options_.place, ": the snapshot of clock ", clock_, " was not written, the job goes on: ", error.what());
    }
  }
  void go_on() {
    const auto file = snapshot_file(options_.folder, options_.place);
    const Snapshot snapshot = read_snapshot(file, options_.place, options_.server.servers);
    begin(snapshot.parameters, snapshot.optimizer);
    shard_->load(file);
    shard_->set_steps(snapshot.steps);
    clock_ = snapshot.clock;
    first_clock_ = together_ && options_.place == 0 ? std::optional(clock_) : std::nullopt;
    last_ = snapshot.last;
    initialized_ = goes_on_ = true;
    log::info("server ", options_.place, " goes on from its snapshot at clock ", clock_);
  }

  const ParameterServerOptions& options_;
  const bool together_;
  std::string optimizer_;
  double default_lr_ = 0;
  bool initialized_ = false;
  bool goes_on_ = false; // from a snapshot
  Workers workers_;
  Counters counters_;
  int64_t updates_kept_ = 0;
  std::vector<Waiting> pulls_;
  Round round_;
  json last_ = json::object(); // decision() of the round before it
  std::vector<Waiting> sums_;
  std::vector<Waiting> late_; // that want the values of the next clock
  std::vector<Waiting> alone_; // stepped, and not answered yet (stale)
};

} // namespace

Counters serve(rpc::Server& server, const ParameterServerOptions& options) {
  return Service(server, options).run();
}

} // namespace trireme::parallel::server
