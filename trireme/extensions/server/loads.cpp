#include <trireme/extensions/server/loads.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>

#include <nlohmann/json.hpp>

#include <utility>

namespace trireme::parallel::server {

using nlohmann::json;

// `after`: number of loads that the worker has seen; absent if it begins to train with this one.
void Loads::load(const PendingRequest& waiting) {
  const int number = worker_of(waiting);
  const auto id = waiting.header.at("id").get<std::string>();
  const auto step = waiting.header.at("step").get<int64_t>();
  const bool trains = waiting.header.contains("after");
  const int64_t after = waiting.header.value("after", int64_t{0});
  if (load_.number > 0 && load_.id == id && (!trains || after < load_.number)) {
    return answer_loaded(waiting, number);
  }
  const bool has_returned = workers_.has_returned(number);
  const bool is_new = trains ? after == load_.number && !has_returned : load_.number == 0 && clock_ == load_.clock;
  if (!is_new) {
    // A lost worker that returns takes the present load.
    return has_returned ? answer_loaded(waiting, number) : refuse(waiting, why_not(id));
  }
  if (coming_ && coming_->id != id) {
    return refuse(waiting, concat("worker ", number, " has loaded ", id, ", but other workers have loaded ",
                                  coming_->id, ": give all workers the same checkpoint"));
  }
  coming_ = Load{load_.number + 1, id, step, 0};
  loaders_.push_back(waiting);
  loaders_.back().worker = number;
  ask_to_bring();
}

std::string Loads::why_not(const std::string& id) const {
  if (load_.number == 0) {
    return concat("a worker has loaded ", id, ", but others have made ", clock_,
                  " updates without it: give all workers the same checkpoint, and start those without one after it "
                  "is loaded");
  }
  return concat("a worker has loaded ", id, ", but the others have loaded ", load_.id,
                ": give all workers the same checkpoint");
}

void Loads::answer_loaded(const PendingRequest& waiting, int number) {
  answer(waiting, {{"status", "ok"}, {"load", as_json(load_)}, {"steps", shard_->steps()}, {"step", step_of(number)}});
}

void Loads::ask_to_bring() {
  if (!asked_ && !loaders_.empty()) {
    const PendingRequest first = std::move(loaders_.front());
    loaders_.erase(loaders_.begin());
    asked_ = first.event.client;
    answer(first, {{"status", "bring"}, {"load", as_json(*coming_)}});
  }
}

// The body: parameters, then all arrays.
void Loads::set(const PendingRequest& waiting) {
  const int number = worker_of(waiting);
  const auto bytes = static_cast<size_t>(shard_->share().bytes);
  if (waiting.event.body.size() != bytes + static_cast<size_t>(shard_->array_bytes()) * shard_->arrays().size()) {
    return refuse(waiting, "the body has not the size of values and all arrays");
  }
  if (waiting.header.at("number").get<int64_t>() <= load_.number) {
    return answer_loaded(waiting, number);
  }
  if (asked_ != waiting.event.client) {
    return refuse(waiting, "this worker was not asked for values: send load first");
  }
  const auto steps = waiting.header.at("steps").get<int64_t>();
  const auto first = waiting.header.value("first_clock", int64_t{-1});
  shard_->set_values(waiting.event.body.first(bytes));
  shard_->set_arrays(waiting.event.body.subspan(bytes));
  shard_->set_steps(steps);
  initialized_ = true;
  ++clock_; // gradients of earlier clocks are not of these values
  if (together_) {
    first_clock_ = options_.place == 0 ? std::optional(clock_) : first < 0 ? std::nullopt : std::optional(first);
  }
  load_ = *std::exchange(coming_, std::nullopt);
  load_.clock = clock_;
  asked_.reset();
  workers_.begin_anew();
  last_ = json::object();
  keep(); // before any worker learns that the load is set
  log::info("server ", options_.place, " continues from ", load_.id, " at clock ", clock_);
  answer_loaded(waiting, number);
  for (const PendingRequest& loader : std::exchange(loaders_, {})) {
    answer_loaded(loader, loader.worker);
  }
  begin_anew();
  take_held();
}

void Loads::without_loader(uint64_t client) {
  forget(loaders_, client);
  forget(held_, client);
  if (asked_ == client) {
    asked_.reset();
    ask_to_bring();
  }
  if (coming_ && !asked_) { // all workers that had it are lost
    coming_.reset();
    take_held();
  }
}

void Loads::take_held() {
  for (const PendingRequest& one : std::exchange(held_, {})) {
    take_again(one);
  }
}

} // namespace trireme::parallel::server
