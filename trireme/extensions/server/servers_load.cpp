// Loading a checkpoint: all servers have it before the worker pushes.
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/extensions/server/load.h>
#include <trireme/extensions/server/server_connection.h>
#include <trireme/extensions/server/servers.h>

#include <algorithm>
#include <utility>

namespace trireme::parallel::server {

using nlohmann::json;

// Server 0 decides which load it is; the other servers get the same one from any worker that has it. They are called
// one after the other, so that two workers never wait for each other.
bool Servers::load(const Loaded& loaded, const TensorOf& values, const OfArray& f) {
  Load decided;
  for (const auto& server : servers_) {
    const std::string& id = server->number == 0 ? loaded.id : decided.id;
    json reply;
    try {
      reply = tell_load(*server, loaded, id, values, f);
    } catch (const PeerError&) {
      connect_again(*server, [&](int64_t) { reply = tell_load(*server, loaded, id, values, f); });
    }
    if (server->number == 0) {
      decided = read_load(reply.at("load"));
    }
    if (decided.number == 0) {
      break;
    }
  }
  pull(values);
  loads_ = decided.number;
  for (const auto& server : servers_) {
    if (server->loads < decided.number) {
      throw Error("server", concat("server ", server->number, " does not have ", decided.id, ", which server 0 has"),
                  "Restart the job with --resume.");
    }
  }
  if (decided.id != loaded.id) {
    log::info("worker ", options_.worker, " uses the servers' values, of step ", step_, ", not those of ", loaded.id);
  }
  return decided.id == loaded.id;
}

std::optional<int64_t> Servers::loads() const {
  const int64_t first = servers_.front()->loads;
  const bool are_equal =
      std::all_of(servers_.begin(), servers_.end(), [first](const auto& server) { return server->loads == first; });
  return are_equal ? std::optional(first) : std::nullopt;
}

// Returns when the server has the load.
json Servers::tell_load(Connection& server, const Loaded& loaded, const std::string& id, const TensorOf& values,
                        const OfArray& f) {
  json header = {{"op", "load"}, {"worker", options_.worker}, {"id", id}, {"step", loaded.step}};
  if (loads_) {
    header["after"] = *loads_;
  }
  json reply = ask(server, header);
  if (reply.at("status") != "bring") {
    return reply;
  }
  if (id != loaded.id) {
    throw InputError(
        "server",
        concat("server ", server.number, " needs ", id, ", which server 0 has, but this worker has loaded ", loaded.id),
        concat("Load ", id, " on this worker."));
  }
  const auto bytes = static_cast<size_t>(server.share.bytes + server.array_bytes * std::ssize(server.arrays));
  const auto body = shareable(bytes);
  gather_values(server, values);
  std::copy_n(server.gradients.get(), server.share.bytes, body.get());
  visit_arrays(server, body.get() + server.share.bytes, f);
  header = {{"op", "set"},
            {"worker", options_.worker},
            {"number", reply.at("load").at("number")},
            {"steps", loaded.optimizer_steps}};
  if (server.number > 0) {
    header["first_clock"] = servers_.front()->clock;
  }
  return ask(server, header, {body.get(), bytes});
}

void Servers::begins_to_train() {
  loads_ = loads_.value_or(servers_.front()->loads);
}

} // namespace trireme::parallel::server
