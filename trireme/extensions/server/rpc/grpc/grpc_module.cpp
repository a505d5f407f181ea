// The functions that the module exports; see grpc_functions.h.
#include <trireme/extensions/server/rpc/grpc/module_client.h>
#include <trireme/extensions/server/rpc/grpc/module_server.h>

#include <trireme/base/error.h>

#include <grpcpp/version_info.h>

namespace trireme::rpc::grpc {
namespace {

struct Handle {
  std::shared_ptr<ModuleClient> client;
  std::shared_ptr<ModuleClient::Call> call;
};

ModuleServer& server_of(Server server) {
  return *static_cast<ModuleServer*>(server);
}

std::shared_ptr<ModuleClient>& client_of(Client client) {
  return *static_cast<std::shared_ptr<ModuleClient>*>(client);
}

/// Runs the function. Returns 1, or 0 and describes the failure.
template <typename Function>
int guarded(Trouble* trouble, const Function& function) {
  try {
    function();
    return 1;
  } catch (const Failure& failure) {
    fill(trouble, failure.input, failure.what(), failure.next);
  } catch (const Error& error) {
    fill(trouble, error.exit_code() == 2, error.what(), "");
  } catch (const std::exception& error) {
    fill(trouble, false, error.what(), "");
  }
  return 0;
}

ModuleClient::Clock::time_point after(int64_t timeout_ms) {
  return ModuleClient::Clock::now() + std::chrono::milliseconds(timeout_ms);
}

const char* library() {
  return "gRPC " GRPC_CPP_VERSION_STRING;
}

int serve(const Options* options, Server* server, int* port, Trouble* trouble) {
  return guarded(trouble, [&] {
    auto made = std::make_unique<ModuleServer>(*options);
    *port = made->port();
    *server = made.release();
  });
}

int next(Server server, int64_t timeout_ms, Event* event) {
  return server_of(server).next(std::chrono::milliseconds(timeout_ms), event) ? 1 : 0;
}

void reply(Server server, uint64_t id, Text header, size_t body_bytes) {
  server_of(server).reply(id, string(header), body_bytes);
}

void stop(Server server) {
  delete static_cast<ModuleServer*>(server);
}

int connect(const Options* options, int64_t timeout_ms, Client* client, Trouble* trouble) {
  return guarded(trouble, [&] {
    *client = new std::shared_ptr<ModuleClient>(ModuleClient::connect(*options, after(timeout_ms)));
  });
}

Call call(Client client, Text header, const void* body, size_t body_bytes, void* room, size_t room_bytes) {
  const auto& connection = client_of(client);
  return new Handle{connection, connection->call(string(header), {static_cast<const std::byte*>(body), body_bytes},
                                                 {static_cast<std::byte*>(room), room_bytes})};
}

int wait(Call call, int64_t timeout_ms, Text* header, Trouble* trouble) {
  return guarded(trouble, [&] {
    auto& handle = *static_cast<Handle*>(call);
    const std::string& text = handle.client->wait(*handle.call, after(timeout_ms));
    *header = {text.data(), text.size()};
  });
}

int wait_for(Call call, int64_t timeout_ms) {
  auto& handle = *static_cast<Handle*>(call);
  return handle.client->wait_until(*handle.call, after(timeout_ms)) ? 1 : 0;
}

int done(Call call) {
  auto& handle = *static_cast<Handle*>(call);
  return handle.client->done(*handle.call) ? 1 : 0;
}

void drop(Call call) {
  delete static_cast<Handle*>(call);
}

void count(Client client, int64_t* sent, int64_t* received) {
  *sent = client_of(client)->sent();
  *received = client_of(client)->received();
}

void close(Client client) {
  client_of(client)->close();
  delete &client_of(client);
}

} // namespace
} // namespace trireme::rpc::grpc

extern "C" __attribute__((visibility("default"))) const trireme::rpc::grpc::Functions* trireme_grpc_functions() {
  using namespace trireme::rpc::grpc;
  static const Functions functions = {kInterfaceVersion, library, serve, next,  reply, stop, connect, call, wait,
                                      wait_for,          done,    drop,  count, close};
  return &functions;
}
