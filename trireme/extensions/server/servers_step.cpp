// A synchronous step of one worker. It pushes its gradients to all servers, and each push is answered with the values.
// One worker, the committer, gets the sum before the step and commits for all.
#include <trireme/extensions/server/servers.h>

#include <trireme/base/error.h>
#include <trireme/extensions/server/requests.h>
#include <trireme/extensions/server/server_connection.h>

#include <algorithm>
#include <utility>

namespace trireme::parallel::server {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

/// While it waits for one server, a worker checks this often whether others have ended, and sends them its push again.
constexpr milliseconds kBetweenLooks{100};
/// A server usually finds server 0's members on its own within this time; after it, the worker sends them.
constexpr milliseconds kFindsTheSame{1000};

} // namespace

json Servers::push_header(const Connection& server) const {
  json header = {{"op", "push"}, {"worker", options_.worker}, {"clock", server.clock}, {"loss", loss_}};
  if (stop_) {
    header["stop"] = true;
  }
  if (!unused_.empty()) {
    header["unused"] = unused_;
  }
  if (server.has_sparse()) {
    header["rows"] = server.counts;
  }
  if (server.number > 0) {
    header["first_clock"] = servers_.front()->pushed_clock;
  }
  return header;
}

void Servers::send_push(Connection& server) {
  json header = push_header(server);
  if (server.version) {
    header["have"] = *server.version;
  }
  server.answer.reset();
  server.call.reset();
  server.withdrawn = false;
  server.has_step = false;
  server.pushed_clock = server.clock;
  server.pushed_step = servers_.front()->pushed_clock;
  server.pushed = server.client->call(header.dump(), server.of_gradients(), server.room_for_values());
}

// Processes the responses that have arrived, without waiting.
void Servers::take_answer(Connection& server) {
  try {
    if (server.call && server.call->done()) { // response to `sum`: the members are those of server 0
      const int64_t clock = server.clock;
      const std::optional<int64_t> first_clock = server.first_clock;
      json reply = receive(server);
      const bool is_of_this_step = server.clock == clock && reply.at("status") == "ok";
      const bool has_values = server.answer && !server.asks_to_commit();
      if (reply.at("status") == "withdrawn" || has_values) {
        // The push is answered, now or before.
      } else if (reply.at("status") ==
                 "missing") { // the server has lost the step of this gradient, or the gradient came too late
        if (!server.pushed) {
          send_push(server);
        }
      } else if (is_of_this_step || !server.pushed) {
        // The server may have finished the step meanwhile: then it answers a commit with its values.
        reply["status"] = "commit";
        reply["members"] = servers_.front()->answer->at("members"); // the server uses those of them whose pushes it has
        server.answer = std::move(reply);
      }
      server.clock = clock; // the clock of the values that are here
      server.first_clock = first_clock;
    }
    if (server.pushed && server.pushed->done()) {
      json reply = receive(server, std::exchange(server.pushed, nullptr));
      if (!server.answer || reply.at("status") != "commit") {
        server.answer = std::move(reply);
      }
    }
  } catch (const PeerError&) {
    connect_again(server, [&](int64_t of_step) {
      server.clock = std::min(server.clock, of_step); // a server that has finished the step answers as it did before
      send_push(server);
    });
  }
}

// True if this server's push may belong to the step that server 0 decides or has decided.
bool Servers::may_count(const Connection& server) const {
  const auto& decided = servers_.front()->answer;
  return !decided || (decided->at("status") != "stale" && server.pushed_step <= servers_.front()->pushed_clock);
}

// Sends server 0's members to a server that cannot find them: another worker may have joined, ended, or come too late.
void Servers::tell_members(Connection& server, bool has_waited) {
  const json& decided = *servers_.front()->answer;
  if (server.number == 0 || server.call) {
    return;
  }
  const int64_t step = servers_.front()->pushed_clock;
  if (!may_count(server)) { // keeps its gradient out of a later step on another server
    if (!server.answer && !std::exchange(server.withdrawn, true)) {
      send(server, {{"op", "withdraw"}, {"worker", options_.worker}, {"first_clock", step}});
    }
    return;
  }
  const bool has_others = server.asks_to_commit() && server.answer->at("members") != decided.at("members");
  const bool commits = decided.at("status") == "commit"; // else another worker commits, or did and is lost
  const bool says_nothing = !server.answer && (has_waited || (hybrid_ && commits));
  if (has_others || says_nothing) {
    server.answer.reset();
    send(server, {{"op", "sum"},
                  {"worker", options_.worker},
                  {"clock", server.pushed_clock},
                  {"first_clock", step},
                  {"members", decided.at("members")}});
  }
}

// Waits until all servers that have not made the step have answered this worker's push.
void Servers::await_answers(bool tells_at_once) {
  std::optional<rpc::Clock::time_point> decided;
  const auto awaits_answer = [](const auto& server) { return server->awaits_answer(); };
  while (true) {
    const auto missing = std::find_if(servers_.begin(), servers_.end(), awaits_answer);
    if (missing == servers_.end()) {
      return;
    }
    const auto& awaited = (*missing)->call ? (*missing)->call : (*missing)->pushed;
    awaited->wait_until(rpc::Clock::now() + kBetweenLooks);
    for (const auto& server : servers_) {
      if (server->has_step) {
        continue;
      }
      if (server->awaits_answer()) {
        take_answer(*server);
      }
      if (may_count(*server) &&
          lacks_step(*server)) { // the server was a step behind: other workers wait for this gradient
        send_push(*server);
      }
      if (servers_.front()->answer) {
        decided = decided.value_or(rpc::Clock::now());
        tell_members(*server, tells_at_once || rpc::Clock::now() >= *decided + kFindsTheSame);
      }
    }
  }
}

Servers::Sum Servers::push(const TensorOf& gradients, double loss, bool stop) {
  begins_to_train();
  loss_ = loss;
  stop_ = stop;
  gather_gradients(gradients);
  for (const auto& server : servers_) {
    send_push(*server);
  }
  await_answers(/*tells_at_once=*/false);
  const json& decided = *servers_.front()->answer; // server 0 decides
  Sum sum;
  members_.clear();
  if (decided.at("status") == "stale") {
    sum.stale = true;
    sum.loss = loss;
    return sum;
  }
  members_ = decided.at("members").get<std::vector<int>>();
  sum.members = std::ssize(members_);
  sum.loss = number_in(decided, "loss");
  sum.stop = decided.at("stop");
  for (const auto& server : servers_) {
    if (server->answer->contains("squared_norm_of_all")) { // reported by the committer
      sum.squared_norm = number_in(*server->answer, "squared_norm_of_all");
      break;
    }
    sum.squared_norm += number_in(*server->answer, "squared_norm");
  }
  squared_norm_ = sum.squared_norm;
  return sum;
}

// True if the server has not made a step that contains this worker's gradient. It has answered that the gradient came
// too late, because it was at another step.
bool Servers::lacks_step(const Connection& server) const {
  if (server.number == 0 || !server.answer || server.answer->at("status") != "stale") {
    return false;
  }
  return server.first_clock ? *server.first_clock <= servers_.front()->pushed_clock
                            : server.clock <= server.pushed_clock;
}

json Servers::commit_header(const Step& step) const {
  json header = {{"op", "commit"},
                 {"worker", options_.worker},
                 {"lr", step.lr},
                 {"factor", step.factor ? json(*step.factor) : json()},
                 {"first_clock", servers_.front()->pushed_clock},
                 {"members", members_},
                 {"squared_norm", squared_norm_}};
  if (step.betas) {
    header["betas"] = {step.betas->first, step.betas->second};
  }
  return header;
}

// Takes the server's values after the step. If the server ended before it answered, or its answer was lost, its part of
// the step is repeated: the gradients are still here, and the other workers do the same.
void Servers::take_step(Connection& server, const TensorOf& values) {
  try {
    if (server.asks_to_commit()) {
      take_values(server, values);
    } else {
      scatter(server, *server.answer, values);
    }
    server.has_step = true;
  } catch (const PeerError&) {
    connect_again(server, [&](int64_t of_step) {
      if (members_.empty()) { // this worker was too late for the step
        ask_for_values(server, {{"op", "pull"}, {"clock", server.clock}});
        take_values(server, values);
        server.has_step = true;
      } else {
        server.clock = std::min(server.clock, of_step);
        send_push(server);
      }
    });
  }
}

void Servers::commit(const Step& step, const TensorOf& values) {
  json header = commit_header(step);
  const int64_t first_clock = servers_.front()->clock;
  const auto has_step = [](const auto& server) { return server->has_step; };
  while (!std::all_of(servers_.begin(), servers_.end(), has_step)) {
    await_answers(/*tells_at_once=*/true);
    for (const auto& server : servers_) { // all at once
      if (server->has_step || !server->asks_to_commit()) {
        continue; // its values have arrived
      }
      if (members_.empty()) { // too late: pulls the values of the others' step
        ask_for_values(*server, {{"op", "pull"}, {"first_clock", first_clock}});
      } else {
        header["clock"] = server->pushed_clock;
        ask_for_values(*server, header);
      }
    }
    for (const auto& server : servers_) {
      if (!server->has_step) {
        take_step(*server, values);
      }
    }
  }
  for (const auto& server : servers_) {
    if (const auto pushed =
            std::exchange(server->pushed,
                          nullptr)) { // a server that was told the members answers both requests, into the same memory
      pushed->wait_until(rpc::Clock::now() + kLongestAnswer);
    }
    server->answer.reset();
  }
  catch_up(values);
}

void Servers::push_pull(const TensorOf& gradients, double loss, const Step& step, const TensorOf& values) {
  begins_to_train();
  loss_ = loss;
  stop_ = false;
  gather_gradients(gradients);
  servers_.front()->pushed_clock = servers_.front()->clock;
  for (const auto& server : servers_) {
    json header = push_header(*server);
    header["op"] = "push_pull";
    header["lr"] = step.lr;
    header["factor"] = step.factor ? json(*step.factor) : json();
    if (step.betas) {
      header["betas"] = {step.betas->first, step.betas->second};
    }
    ask_for_values(*server, header, server->of_gradients());
  }
  for (const auto& server : servers_) {
    take_or_pull(*server, values);
  }
}

} // namespace trireme::parallel::server
