#include "run_store.h"

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/store/secret.h>
#include <trireme/store/server.h>
#include <trireme/store/sockets.h>

#include <charconv>
#include <csignal>
#include <iostream>

namespace trireme::tools {
namespace {

store::Endpoint endpoint_of(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = -1;
  if (colon != std::string::npos && colon > 0) {
    const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
    port = error == std::errc() && end == text.data() + text.size() ? port : -1;
  }
  if (port < 0 || port > 65535) {
    throw InputError("store", concat("--listen ", text, " is not HOST:PORT"),
                     "Give the address under which the ranks reach this host, for example 127.0.0.1:29600.");
  }
  return {text.substr(0, colon), port};
}

} // namespace

int run_store(const StoreCommand& command) {
  store::Endpoint endpoint = endpoint_of(command.listen);
  const store::Secret secret = store::Secret::from_environment();
  if (secret.empty()) {
    throw InputError("store", "the store has no secret, so anybody could join the job",
                     "Set TRIREME_SECRET_FILE, here and for all ranks, to a file of 32 random bytes with mode 0600.");
  }
  sigset_t ends;
  sigemptyset(&ends);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    sigaddset(&ends, number);
  }
  pthread_sigmask(SIG_BLOCK, &ends, nullptr); // also in the server's thread
  const int listening = store::listen_on(endpoint);
  endpoint.port = store::bound_port(listening);
  const store::Server server(listening, {.secret = secret, .job = env::text("TRIREME_RUN_ID").value_or("")});
  std::cout << "TRIREME_ELASTIC=" << endpoint.host << ':' << endpoint.port << std::endl;
  int number = 0;
  sigwait(&ends, &number);
  return 0;
}

} // namespace trireme::tools
