#pragma once

#include <trireme/rpc/rpc.h>

#include <nlohmann/json.hpp>

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme::test {

/// One of several servers that hold rows of parameters and step them by SGD: as little of a parameter server as a worker can be tested with. Where workers step together, it
/// adds up their gradients in the order of the workers.
class RowServer {
 public:
  using Json = nlohmann::json;
  RowServer(std::unique_ptr<rpc::Server> server, int place, int servers, bool together) : server_(std::move(server)), place_(place), servers_(servers), together_(together) {}

  std::string address() const {
    return server_->address();
  }
  int pushes() const {
    return pushes_;
  }
  /// Serves until all of `workers` have left.
  void run(int workers, rpc::Clock::time_point deadline) {
    int left = 0;
    while (left < workers && rpc::Clock::now() < deadline) {
      const auto event = server_->next(std::chrono::milliseconds(50));
      if (!event || event->kind != rpc::Event::Kind::request) {
        continue;
      }
      const Json request = Json::parse(event->header);
      const std::string op = request.at("op");
      if (op == "join") {
        join(*event, request);
      } else if (op == "init") {
        values_.resize(event->body.size() / 4);
        std::memcpy(values_.data(), event->body.data(), event->body.size());
        initialized_ = true;
        reply(*event, {{"status", "ok"}});
        for (const auto& waiting : std::exchange(waiting_, {})) {
          give(waiting, {{"status", "ok"}, {"clock", clock_}});
        }
      } else if (op == "pull") {
        initialized_ ? give(*event, {{"status", "ok"}, {"clock", clock_}}) : waiting_.push_back(*event);
      } else if (op == "push_pull") {
        push(*event, request);
      } else {
        ++left;
        reply(*event, {{"status", "ok"}});
      }
    }
  }

 private:
  void reply(const rpc::Event& event, const Json& header) {
    server_->reply(event.id, header.dump());
  }
  void give(const rpc::Event& event, const Json& header) {
    std::memcpy(event.room.data(), values_.data(), std::min(event.room.size(), values_.size() * 4));
    reply(event, header);
  }
  void join(const rpc::Event& event, const Json& request) {
    workers_ = request.at("workers");
    rate_ = request.at("optimizer").at("lr");
    Json pieces = Json::array();
    int64_t offset = 0;
    for (const auto& parameter : request.at("parameters")) {
      const std::vector<int64_t> shape = parameter.at("shape");
      const int64_t begin = shape[0] * place_ / servers_;
      const int64_t end = shape[0] * (place_ + 1) / servers_;
      int64_t bytes = (end - begin) * 4;
      for (size_t dim = 1; dim < shape.size(); ++dim) {
        bytes *= shape[dim];
      }
      pieces.push_back({{"name", parameter.at("name")}, {"rows", {begin, end}}, {"offset", offset}});
      offset += bytes;
    }
    reply(event, {{"status", "ok"}, {"clock", clock_}, {"initialized", initialized_}, {"pieces", pieces}, {"bytes", offset}});
  }
  void push(const rpc::Event& event, const Json& request) {
    ++pushes_;
    if (!together_) {
      step({event});
      give(event, {{"status", "accepted"}, {"clock", ++clock_}, {"loss", request.at("loss")}});
      return;
    }
    pushed_[request.at("worker")] = {event, request.at("loss")};
    if (static_cast<int>(pushed_.size()) < workers_) {
      return;
    }
    std::vector<rpc::Event> events;
    double loss = 0;
    for (const auto& [worker, one] : pushed_) {
      events.push_back(one.first);
      loss += one.second / workers_;
    }
    step(events);
    ++clock_;
    for (const auto& one : events) {
      give(one, {{"status", "accepted"}, {"clock", clock_}, {"loss", loss}});
    }
    pushed_.clear();
  }
  void step(const std::vector<rpc::Event>& events) {
    for (size_t i = 0; i < values_.size(); ++i) {
      float sum = 0;
      for (const auto& event : events) {
        float gradient = 0;
        std::memcpy(&gradient, event.body.data() + i * 4, 4);
        sum += gradient;
      }
      values_[i] -= rate_ * sum / static_cast<float>(events.size());
    }
  }

  std::unique_ptr<rpc::Server> server_;
  int place_;
  int servers_;
  bool together_;
  int workers_ = 1;
  float rate_ = 0;
  bool initialized_ = false;
  int64_t clock_ = 0;
  int pushes_ = 0;
  std::vector<float> values_;
  std::vector<rpc::Event> waiting_;
  std::map<int, std::pair<rpc::Event, double>> pushed_;
};

} // namespace trireme::test
