#include <trireme/parallel/server/servers.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/comm/shm/arena.h>
#include <trireme/parallel/server/requests.h>
#include <trireme/parallel/server/shard.h>

#include <torch/utils.h>

#include <algorithm>

namespace trireme::parallel::server {
namespace {

using nlohmann::json;

// A worker may wait for all others, or for a checkpoint of the first one. Whether the other side lives is the transport's to notice.
constexpr std::chrono::hours kLongestAnswer{12};

// Memory that servers of this host read and write themselves.
std::shared_ptr<std::byte[]> shareable(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  if (comm::shm::Arena::obstacle().empty()) {
    if (void* const memory = comm::shm::Arena::process().allocate(bytes)) {
      return {static_cast<std::byte*>(memory), [](std::byte* block) { comm::shm::Arena::process().release(block); }};
    }
  }
  return std::shared_ptr<std::byte[]>(new std::byte[bytes]);
}

} // namespace

struct Servers::Connection {
  int number = 0;
  std::string address;
  std::unique_ptr<rpc::Client> client;
  Share share;
  std::vector<std::string> arrays;
  int64_t array_bytes = 0;
  int64_t clock = 0;
  bool initialized = false;
  std::shared_ptr<std::byte[]> gradients; // share.bytes
  std::shared_ptr<std::byte[]> values; // share.bytes
  std::shared_ptr<rpc::Call> call; // on its way
  std::shared_ptr<rpc::Call> pushed; // answered when the sum is there

  std::span<std::byte> of_gradients() const {
    return {gradients.get(), static_cast<size_t>(share.bytes)};
  }
  std::span<std::byte> of_values() const {
    return {values.get(), static_cast<size_t>(share.bytes)};
  }
};

Servers::Servers(WorkerOptions options, std::vector<ParameterInfo> parameters, json optimizer)
    : options_(std::move(options)), parameters_(std::move(parameters)), optimizer_(std::move(optimizer)) {
  std::vector<Share> shares = share_out(parameters_, static_cast<int>(options_.addresses.size()));
  for (size_t s = 0; s < shares.size(); ++s) {
    auto server = std::make_unique<Connection>();
    server->number = static_cast<int>(s);
    server->address = options_.addresses[s];
    server->share = std::move(shares[s]);
    server->gradients = shareable(static_cast<size_t>(server->share.bytes));
    server->values = shareable(static_cast<size_t>(server->share.bytes));
    connect(*server);
    servers_.push_back(std::move(server));
  }
}

Servers::~Servers() = default;

void Servers::connect(Connection& server) {
  if (server.client) {
    sent_before_ += server.client->bytes_sent();
  }
  server.pushed.reset();
  server.call.reset();
  server.client.reset();
  server.client = rpc::connect(server.address, options_.access, rpc::Clock::now() + options_.patience);
  const json reply = ask(server, {{"op", "join"}, {"worker", options_.worker}, {"workers", options_.workers}, {"parameters", describe(parameters_)}, {"optimizer", optimizer_}});
  if (reply.at("bytes").get<int64_t>() != server.share.bytes || reply.at("servers").get<size_t>() != options_.addresses.size() || reply.at("server").get<int>() != server.number) {
    throw InputError("server", concat(server.address, " says that it is server ", reply.at("server").get<int>(), " of ", reply.at("servers").get<int>(), "; this worker takes it for ", server.number, " of ",
                                      options_.addresses.size()),
                     "Give all workers the servers' addresses in the servers' order.");
  }
  server.arrays = reply.at("arrays").get<std::vector<std::string>>();
  server.array_bytes = reply.at("array_bytes");
  server.initialized = reply.at("initialized");
}

void Servers::send(Connection& server, const json& header, std::span<const std::byte> body, std::span<std::byte> room) {
  server.call = server.client->call(header.dump(), body, room);
}

json Servers::receive(Connection& server) {
  const json reply = json::parse(server.call->wait(rpc::Clock::now() + kLongestAnswer));
  server.call.reset();
  if (reply.at("status") == "refused") {
    throw InputError("server", concat("server ", server.number, " (", server.address, ") refuses: ", reply.at("error").get<std::string>()));
  }
  server.clock = reply.at("clock");
  if (reply.contains("steps")) {
    steps_ = reply["steps"];
  }
  return reply;
}

json Servers::ask(Connection& server, const json& header, std::span<const std::byte> body, std::span<std::byte> room) {
  send(server, header, body, room);
  return receive(server);
}

// Copies each piece of the server's share of what `tensors` says into its body.
void Servers::gather(Connection& server, const TensorOf& tensors, std::vector<int64_t>& unused) {
  const torch::NoGradGuard no_grad;
  for (const Piece& piece : server.share.pieces) {
    const ParameterInfo& parameter = parameters_[piece.parameter];
    const at::Tensor whole = tensors(piece.parameter);
    if (!whole.defined()) {
      unused.push_back(piece.parameter);
      continue;
    }
    const at::Tensor rows = whole.dim() == 0 ? whole.detach() : whole.detach().slice(0, piece.begin, piece.end);
    torch::from_blob(server.gradients.get() + piece.offset, rows.sizes(), scalar_type(parameter)).copy_(rows);
  }
}

void Servers::scatter(const Connection& server, const TensorOf& tensors) const {
  const torch::NoGradGuard no_grad;
  for (const Piece& piece : server.share.pieces) {
    at::Tensor whole = tensors(piece.parameter).detach();
    at::Tensor rows = whole.dim() == 0 ? whole : whole.slice(0, piece.begin, piece.end);
    rows.copy_(torch::from_blob(server.values.get() + piece.offset, rows.sizes(), scalar_type(parameters_[piece.parameter])));
  }
}

bool Servers::initialized() const {
  return std::all_of(servers_.begin(), servers_.end(), [](const auto& server) { return server->initialized; });
}

void Servers::initialize(const TensorOf& values) {
  for (const auto& server : servers_) {
    std::vector<int64_t> none;
    gather(*server, values, none);
    send(*server, {{"op", "init"}}, server->of_gradients());
  }
  for (const auto& server : servers_) {
    receive(*server);
    server->initialized = true;
  }
}

void Servers::pull(const TensorOf& values) {
  for (const auto& server : servers_) {
    send(*server, {{"op", "pull"}, {"clock", server->clock}}, {}, server->of_values());
  }
  for (const auto& server : servers_) {
    receive(*server);
    scatter(*server, values);
  }
}

json Servers::push_header(const Connection& server, const std::vector<int64_t>& unused, double loss, bool stop) const {
  json header = {{"op", "push"}, {"worker", options_.worker}, {"clock", server.clock}, {"loss", loss}};
  if (stop) {
    header["stop"] = true;
  }
  if (!unused.empty()) {
    header["unused"] = unused;
  }
  return header;
}

void Servers::say_lost(const Connection& server, int64_t before) const {
  if (server.clock < before) {
    log::warning("server ", server.number, " has started again from its snapshot at clock ", server.clock, ": the updates of its part after that, up to clock ", before, ", are lost");
  } else {
    log::warning("server ", server.number, " has started again, with all updates that this worker knows of");
  }
}

void Servers::recover(Connection& server, const TensorOf* values) {
  const int64_t before = server.clock;
  connect(server);
  say_lost(server, before);
  if (values != nullptr) {
    ask(server, {{"op", "pull"}, {"clock", server.clock}}, {}, server.of_values());
    scatter(server, *values);
  }
}

Servers::Sum Servers::push(const TensorOf& gradients, double loss, bool stop) {
  unused_.clear();
  loss_ = loss;
  stop_ = stop;
  for (const auto& server : servers_) {
    gather(*server, gradients, unused_);
  }
  const auto send_push = [&](Connection& server) { server.pushed = server.client->call(push_header(server, unused_, loss, stop).dump(), server.of_gradients()); };
  for (const auto& server : servers_) {
    send_push(*server);
  }
  // The first server decides.
  Connection& first = *servers_.front();
  json decided;
  while (true) {
    try {
      decided = json::parse(first.pushed->wait(rpc::Clock::now() + kLongestAnswer));
      break;
    } catch (const PeerError&) {
      const int64_t of_step = first.clock;
      recover(first, nullptr);
      first.clock = std::min(first.clock, of_step); // a server that has taken the step answers as it did
      send_push(first);
    }
  }
  first.pushed.reset();
  if (decided.at("status") == "refused") {
    throw InputError("server", concat("server 0 (", first.address, ") refuses: ", decided.at("error").get<std::string>()));
  }
  Sum sum;
  if (decided.at("status") == "stale") {
    const int64_t next = decided.value("next", decided.at("clock").get<int64_t>());
    steps_missed_ = next - first.clock;
    first.clock = next;
    sum.stale = true;
    sum.loss = loss;
    members_.clear();
    return sum;
  }
  members_ = decided.at("members").get<std::vector<int>>();
  sum.members = std::ssize(members_);
  sum.loss = number_in(decided, "loss");
  sum.stop = decided.at("stop");
  sum.squared_norm = number_in(decided, "squared_norm");
  for (size_t s = 1; s < servers_.size(); ++s) {
    send(*servers_[s], {{"op", "sum"}, {"worker", options_.worker}, {"clock", servers_[s]->clock}, {"members", members_}});
  }
  for (size_t s = 1; s < servers_.size(); ++s) {
    Connection& server = *servers_[s];
    while (true) {
      try {
        const int64_t clock = server.clock;
        const json reply = receive(server);
        server.clock = clock;
        if (reply.at("status") == "ok") {
          sum.squared_norm += number_in(reply, "squared_norm");
        }
        break;
      } catch (const PeerError&) {
        const int64_t of_step = server.clock;
        recover(server, nullptr);
        server.clock = std::min(server.clock, of_step);
        send_push(server);
        send(server, {{"op", "sum"}, {"worker", options_.worker}, {"clock", server.clock}, {"members", members_}});
      }
    }
  }
  return sum;
}

// The server has ended before it answered a commit, or its answer got lost. If it does not know of the step, its part of it is made again: the gradients are still here, and the other workers do the same.
void Servers::commit_again(Connection& server, json header, const TensorOf& values) {
  const auto deadline = rpc::Clock::now() + options_.patience;
  const int64_t of_step = server.clock;
  while (true) {
    try {
      connect(server);
      say_lost(server, of_step);
      bool again = !members_.empty() && server.clock <= of_step;
      if (again) {
        server.pushed = server.client->call(push_header(server, unused_, loss_, stop_).dump(), server.of_gradients());
        if (server.number == 0) {
          const json decided = json::parse(server.pushed->wait(rpc::Clock::now() + kLongestAnswer));
          again = decided.at("status") == "accepted";
        } else {
          const int64_t clock = server.clock;
          ask(server, {{"op", "sum"}, {"worker", options_.worker}, {"clock", clock}, {"members", members_}});
          server.clock = clock;
        }
      }
      header["clock"] = server.clock;
      ask(server, again ? header : json{{"op", "pull"}, {"clock", server.clock}}, {}, server.of_values());
      scatter(server, values);
      return;
    } catch (const PeerError&) {
      if (rpc::Clock::now() >= deadline) {
        throw;
      }
    }
  }
}

void Servers::commit(const Step& step, const TensorOf& values) {
  json header;
  if (members_.empty()) { // too late: the values of the step that the others take
    for (const auto& server : servers_) {
      send(*server, {{"op", "pull"}, {"clock", server->number == 0 ? server->clock : server->clock + steps_missed_}}, {}, server->of_values());
    }
  } else {
    header = {{"op", "commit"}, {"worker", options_.worker}, {"lr", step.lr}};
    header["factor"] = step.factor ? json(*step.factor) : json();
    if (step.betas) {
      header["betas"] = {step.betas->first, step.betas->second};
    }
    for (const auto& server : servers_) {
      header["clock"] = server->clock;
      send(*server, header, {}, server->of_values());
    }
  }
  for (const auto& server : servers_) {
    try {
      receive(*server);
      scatter(*server, values);
    } catch (const PeerError&) {
      commit_again(*server, header, values);
    }
    server->pushed.reset();
  }
}

void Servers::push_pull(const TensorOf& gradients, double loss, const Step& step, const TensorOf& values) {
  unused_.clear();
  for (const auto& server : servers_) {
    gather(*server, gradients, unused_);
  }
  for (const auto& server : servers_) {
    json header = push_header(*server, unused_, loss, false);
    header["op"] = "push_pull";
    header["lr"] = step.lr;
    header["factor"] = step.factor ? json(*step.factor) : json();
    if (step.betas) {
      header["betas"] = {step.betas->first, step.betas->second};
    }
    send(*server, header, server->of_gradients(), server->of_values());
  }
  for (const auto& server : servers_) {
    try {
      receive(*server);
      scatter(*server, values);
    } catch (const PeerError&) {
      recover(*server, &values);
    }
  }
}

// `memory` has all arrays of the server, one after the other.
void Servers::visit_arrays(const Connection& server, std::byte* memory, const OfArray& f) const {
  const ArrayLayout layout = array_layout(parameters_, server.share);
  for (size_t a = 0; a < server.arrays.size(); ++a) {
    for (size_t p = 0; p < server.share.pieces.size(); ++p) {
      const Piece& piece = server.share.pieces[p];
      const int64_t row = parameters_[piece.parameter].row_numel();
      const int64_t at = static_cast<int64_t>(a) * server.array_bytes + layout.offsets[p];
      f(server.arrays[a], piece.parameter, piece.begin * row, torch::from_blob(memory + at, {(piece.end - piece.begin) * row}, at::kFloat));
    }
  }
}

void Servers::for_each_array(const OfArray& f) {
  for (const auto& server : servers_) {
    const auto bytes = static_cast<size_t>(server->array_bytes) * server->arrays.size();
    const auto room = shareable(bytes);
    const int64_t clock = server->clock; // that of this worker's values, whatever the others do meanwhile
    ask(*server, {{"op", "get_arrays"}}, {}, {room.get(), bytes});
    server->clock = clock;
    visit_arrays(*server, room.get(), f);
  }
}

void Servers::set(const TensorOf& values, const OfArray& f, int64_t steps) {
  for (const auto& server : servers_) {
    const auto bytes = static_cast<size_t>(server->share.bytes + server->array_bytes * std::ssize(server->arrays));
    const auto body = shareable(bytes);
    std::vector<int64_t> none;
    gather(*server, values, none);
    std::copy_n(server->gradients.get(), server->share.bytes, body.get());
    visit_arrays(*server, body.get() + server->share.bytes, f);
    ask(*server, {{"op", "set"}, {"steps", steps}}, {body.get(), bytes});
    server->initialized = true;
  }
  steps_ = steps;
}

void Servers::leave() {
  for (const auto& server : servers_) {
    if (server->client) {
      try {
        ask(*server, {{"op", "leave"}, {"worker", options_.worker}});
      } catch (const Error& error) {
        log::debug("leaving server ", server->number, ": ", error.what());
      }
      server->client.reset();
    }
  }
}

int64_t Servers::bytes_sent() const {
  int64_t sum = sent_before_;
  for (const auto& server : servers_) {
    sum += server->client ? server->client->bytes_sent() : 0;
  }
  return sum;
}

} // namespace trireme::parallel::server
