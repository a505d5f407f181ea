#include <trireme/extensions/server/parameter_server.h>

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/base/log.h>
#include <trireme/base/run_token.h>
#include <trireme/config/deepspeed_json.h>
#include <trireme/extensions/server/loads.h>
#include <trireme/extensions/server/requests.h>
#include <trireme/extensions/server/shard.h>
#include <trireme/extensions/server/snapshot.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::parallel::server {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kLook{50};

class Service final : private Loads {
 public:
  Service(rpc::Server& server, const ParameterServerOptions& options) : Loads(server, options) {
    first_clock_ = together_ ? first_clock_ : std::nullopt;
    if (!options_.folder.empty() && std::filesystem::exists(snapshot_file(options_.folder, options_.place))) {
      go_on();
    }
  }

  Counters run() {
    using std::chrono::milliseconds;
    const bool hurries = options_.server.mode == ServerOptions::Mode::hybrid;
    const milliseconds look = hurries ? std::clamp(milliseconds(static_cast<int64_t>(options_.server.timeout_s * 250)),
                                                   milliseconds(1), kLook)
                                      : kLook;
    while (!is_over()) {
      if (auto event = server_.next(look)) {
        take(std::move(*event));
      }
      look_at_the_time();
      answer_alone();
      end_if_replaced();
    }
    if (shard_ && updates_kept_ != counters_.updates) {
      keep();
      end_if_replaced();
    }
    return counters_;
  }

 private:
  void end_if_replaced() const {
    if (replaced_) {
      std::rethrow_exception(replaced_);
    }
  }
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
    PendingRequest waiting{std::move(event), {}, -1};
    try_to(
        [&] {
          waiting.header = json::parse(waiting.event.header);
          waiting.header.value("have", int64_t{0}); // fails now if it is not a number, not when others are answered
          take(waiting, waiting.header.at("op").get<std::string>());
        },
        waiting);
  }
  void take_again(const PendingRequest& waiting) override {
    try_to([&] { take(waiting, waiting.op()); }, waiting);
  }
  // Refuses the request if handling it throws.
  template <typename F>
  void try_to(const F& f, const PendingRequest& waiting) {
    try {
      f();
    } catch (const json::exception& error) {
      refuse(waiting, concat("the header does not follow docs/parameter_server.md: ", error.what()));
    } catch (const Error& error) {
      refuse(waiting, error.what());
    }
  }

  void take(const PendingRequest& waiting, const std::string& op) {
    if (op == "join") {
      join(waiting);
    } else if (!shard_) {
      refuse(waiting, "send join first");
    } else if (load_comes() && (op == "push" || op == "push_pull")) {
      hold(waiting);
    } else if (op == "init") {
      init(waiting);
    } else if (op == "pull") {
      pull(waiting);
    } else if (op == "push") {
      push(waiting);
    } else if (op == "sum") {
      sum(waiting);
    } else if (op == "withdraw") {
      take_back(waiting);
    } else if (op == "commit") {
      commit(waiting);
    } else if (op == "push_pull") {
      together_ ? push(waiting) : step_alone(waiting);
    } else if (op == "get_arrays") {
      get_arrays(waiting);
    } else if (op == "load") {
      load(waiting);
    } else if (op == "set") {
      set(waiting);
      answer_alone();
    } else if (op == "status") {
      answer(waiting, status());
    } else if (op == "leave") {
      leave(waiting);
    } else {
      refuse(waiting, concat("unknown op \"", op, '"'));
    }
  }

  json status() const {
    return {{"status", "ok"},
            {"updates", counters_.updates},
            {"accepted", counters_.accepted},
            {"dropped", counters_.dropped},
            {"lost", counters_.lost},
            {"largest_staleness", counters_.largest_staleness},
            {"live", workers_.there()},
            {"steps", shard_->steps()}};
  }

  void join(const PendingRequest& waiting) {
    const json& header = waiting.header;
    std::vector<ParameterInfo> parameters = read_parameters(header.at("parameters"));
    const int number = header.at("worker"), workers = header.at("workers");
    if (number < 0 || number >= workers) {
      return refuse(waiting, concat("worker ", number, " of ", workers, " is out of range"));
    }
    if (!shard_) {
      begin(parameters, header.at("optimizer").dump());
    } else if (parameters != shard_->parameters()) {
      return refuse(waiting, "the worker's parameters differ from those of earlier workers: use the same model on all");
    }
    const bool again = workers_.is_there(number) && !workers_.is_of(number, waiting.event.client);
    const bool lives = header.value("lives", false), restarted = header.value("restarted", false);
    if (again && !restarted && workers_.is_restarted(number)) { // a late request of a process that has ended
      return refuse(waiting, concat("worker ", number, " was restarted, and its new process has already joined"));
    }
    const uint64_t before = again ? workers_.client_of(number) : 0;
    workers_.join(number, workers, waiting.event.client, goes_on_, lives, restarted);
    if (again) {
      log::warning("worker ", number, " has joined again over another connection");
      commits_no_more(number);
      without_loader(before);
    } else {
      log::info("server ", options_.place, ": worker ", number, " of ", workers, " has joined");
    }
    answer(waiting, {{"status", "ok"},
                     {"initialized", initialized_},
                     {"pieces", pieces_of(*shard_)},
                     {"bytes", shard_->share().bytes},
                     {"arrays", shard_->arrays()},
                     {"array_bytes", shard_->array_bytes()},
                     {"server", options_.place},
                     {"servers", options_.server.servers},
                     {"mode", ServerOptions::name(options_.server.mode)},
                     {"together", together_},
                     {"steps", shard_->steps()},
                     {"load", as_json(load_)},
                     {"step", step_of(number)}});
  }

  void begin(const std::vector<ParameterInfo>& parameters, const std::string& optimizer) {
    std::vector<Share> shares = share_out(parameters, static_cast<int>(options_.server.servers));
    optimizer_ = optimizer;
    const optim::OptimizerOptions read = options_.read_optimizer(optimizer);
    default_lr_ = read.lr();
    shard_.emplace(parameters, std::move(shares.at(options_.place)), read);
  }

  void init(const PendingRequest& waiting) {
    if (!initialized_) {
      shard_->check(waiting.event.body, std::nullopt);
      shard_->set_values(waiting.event.body);
      initialized_ = true;
      keep(); // for a server that ends before its first update
    }
    answer(waiting, {{"status", "ok"}});
    answer_pulls();
  }

  // -- Workers that do not wait for each other.

  void step_alone(const PendingRequest& waiting) {
    const int number = worker_of(waiting);
    check_gradients(waiting);
    check_push(waiting.header);
    const json& header = waiting.header;
    if (!initialized_) {
      return refuse(waiting, "there are no values yet: send init or pull first");
    }
    check_room(waiting);
    workers_.has_pushed(number);
    if (waiting.clock() < load_.clock) { // it is of values before the load
      ++counters_.dropped;
      return answer_stale(waiting);
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
    count_update();
    answer_pulls();
    answer_alone();
  }

  void answer_alone() {
    std::vector<PendingRequest> still;
    for (PendingRequest& one : std::exchange(alone_, {})) {
      const bool waits = options_.server.mode == ServerOptions::Mode::stale &&
                         (workers_.awaits_any() || workers_.ahead(one.worker) > options_.server.staleness);
      if (waits) {
        still.push_back(std::move(one));
      } else {
        answer_with_values(one, {{"status", "accepted"}, {"loss", number_in(one.header, "loss")}});
      }
    }
    alone_ = std::move(still);
  }

  // -- States, for checkpoints.

  void get_arrays(const PendingRequest& waiting) {
    if (std::ssize(waiting.event.room) != shard_->array_bytes() * std::ssize(shard_->arrays())) {
      return refuse(waiting, "the room has not the size of all arrays");
    }
    shard_->get_arrays(waiting.event.room);
    answer(waiting, {{"status", "ok"}, {"steps", shard_->steps()}});
  }

  // -- Workers that end.

  void leave(const PendingRequest& waiting) {
    const int number = worker_of(waiting);
    workers_.leave(number);
    answer(waiting, status());
    without(number);
    without_loader(waiting.event.client);
    answer_alone();
  }

  void gone(uint64_t client) {
    forget_requests(client);
    forget(alone_, client);
    for (const int number : workers_.of(client)) {
      workers_.lose(number);
      ++counters_.workers_lost;
      log::warning("server ", options_.place, ": lost worker ", number, " at clock ", clock_,
                   "; the others continue without it");
      without(number);
      answer_alone();
    }
    without_loader(client);
  }

  // -- Snapshots.
  void count_update() override {
    ++counters_.updates;
    if (options_.server.snapshot_every > 0 && counters_.updates % options_.server.snapshot_every == 0) {
      keep();
    }
  }
  // A full disk does not end the job: the next snapshot may fit.
  void keep() override {
    updates_kept_ = counters_.updates;
    if (options_.folder.empty() || !initialized_) {
      return;
    }
    try {
      if (options_.check_claim) {
        options_.check_claim();
      }
      save_snapshot(snapshot_file(options_.folder, options_.place),
                    {options_.place, options_.server.servers, clock_, shard_->steps(), shard_->parameters(), optimizer_,
                     last_, load_, first_clock_, workers_.made()},
                    *shard_);
    } catch (const ReplacedError&) {
      replaced_ = std::current_exception();
    } catch (const std::exception& error) {
      log::error("server ", options_.place, ": the snapshot of clock ", clock_,
                 " was not written; the job continues: ", error.what());
    }
  }
  void go_on() {
    const auto file = snapshot_file(options_.folder, options_.place);
    const Snapshot snapshot = read_snapshot(file, options_.place, options_.server.servers);
    begin(snapshot.parameters, snapshot.optimizer);
    shard_->load(file);
    shard_->set_steps(snapshot.steps);
    clock_ = snapshot.clock;
    first_clock_ = together_ ? snapshot.first_clock : std::nullopt;
    last_ = snapshot.last;
    load_ = snapshot.load;
    workers_.set_made(snapshot.made);
    initialized_ = goes_on_ = true;
    log::info("server ", options_.place, " continues from its snapshot at clock ", clock_);
  }

  std::string optimizer_;
  bool goes_on_ = false; // from a snapshot
  int64_t updates_kept_ = 0;
  std::exception_ptr replaced_;       // set when another training has taken over
  std::vector<PendingRequest> alone_; // pushes that are stepped and not answered yet (stale)
};

} // namespace

optim::OptimizerOptions optimizer_of_section(const std::string& json) {
  const std::string whole = concat(R"({"train_batch_size": 1, "optimizer": )", json, '}');
  return config::read_deepspeed(JsonNode::parse(whole, "the workers' optimizer")).optimizer_or_adamw();
}

Counters serve(rpc::Server& server, const ParameterServerOptions& options) {
  return Service(server, options).run();
}

} // namespace trireme::parallel::server
