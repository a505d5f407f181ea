#include <trireme/extensions/server/rpc/grpc/grpc_transport.h>

#include <trireme/base/address.h>
#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/extensions/server/rpc/grpc/grpc_runtime.h>
#include <trireme/store/sockets.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace trireme::rpc::grpc {
namespace {

using std::chrono::milliseconds;

Text text(const std::string& from) {
  return {from.data(), from.size()};
}

struct Address {
  bool tls = false;
  std::string host;
  int port = 0;
  std::string target() const {
    return concat(host.find(':') == std::string::npos ? host : concat('[', host, ']'), ':', port);
  }
};

Address parse(const std::string& address) {
  constexpr std::string_view kPlain = "grpc://";
  constexpr std::string_view kTls = "grpcs://";
  const auto refuse = [&] {
    throw InputError("rpc", concat("\"", address, "\" is not an address."),
                     "Write it like grpc://10.0.0.1:4711 or grpcs://server.example:4711.");
  };
  Address parsed;
  parsed.tls = address.starts_with(kTls);
  std::string_view rest = address;
  rest.remove_prefix(parsed.tls ? kTls.size() : kPlain.size());
  const size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos || colon == 0) {
    refuse();
  }
  std::string_view host = rest.substr(0, colon);
  const std::string_view port = rest.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":/[]") != std::string_view::npos) {
    refuse();
  }
  parsed.host = host;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), parsed.port);
  if (error != std::errc() || end != port.data() + port.size() || parsed.port < 0 || parsed.port > 65'535) {
    refuse();
  }
  return parsed;
}

/// Reads the file that an environment variable names; "" if it is not set. Errors: InputError.
std::string file_of(const char* variable) {
  const auto path = env::text(variable);
  if (!path) {
    return "";
  }
  try {
    return read_file(*path);
  } catch (const Error& error) {
    throw InputError("rpc", concat("the file of ", variable, " cannot be read: ", error.what()),
                     concat("Correct ", variable, "."));
  }
}

/// Options, with the memory that they point to.
class Prepared {
 public:
  Prepared(const Address& address, const Access& access, bool serves, int listening = -1)
      : target_(address.target()), secret_(access.secret), job_(access.job) {
    options_.target = text(target_);
    options_.listening = listening;
    options_.tls = address.tls ? 1 : 0;
    if (address.tls) {
      certificate_ = file_of("TRIREME_TLS_CERTIFICATE");
      key_ = file_of("TRIREME_TLS_KEY");
      authority_ = file_of(serves ? "TRIREME_TLS_CLIENT_CA" : "TRIREME_TLS_CA");
      if (certificate_.empty() != key_.empty() || (serves && key_.empty())) {
        throw InputError("rpc",
                         concat(serves ? "a server with TLS" : "a certificate",
                                " needs both TRIREME_TLS_CERTIFICATE and TRIREME_TLS_KEY, the files of a certificate "
                                "and its key in PEM."),
                         "docs/grpc.md tells how to make them; grpc:// needs no TLS.");
      }
    }
    options_.certificate = text(certificate_);
    options_.key = text(key_);
    options_.authority = text(authority_);
    options_.secret = text(secret_);
    options_.job = text(job_);
    const int64_t silence = env::integer("TRIREME_GRPC_SILENCE").value_or(15);
    if (silence < 1 || silence > 86'400) {
      throw InputError("rpc", concat("TRIREME_GRPC_SILENCE must be between 1 and 86400 seconds, it is ", silence, "."),
                       "Unset it.");
    }
    options_.ask_after_ms = silence * 1000 / 3;
    options_.give_up_after_ms = silence * 1000 - options_.ask_after_ms;
  }
  Prepared(const Prepared&) = delete;
  const Options* get() const { return &options_; }

 private:
  std::string target_;
  std::string secret_;
  std::string job_;
  std::string certificate_;
  std::string key_;
  std::string authority_;
  Options options_{};
};

[[noreturn]] void complain(const Trouble& trouble) {
  if (trouble.input != 0) {
    throw InputError("rpc", trouble.happened, trouble.next);
  }
  throw PeerError("rpc", trouble.happened, trouble.next);
}

int64_t milliseconds_until(Clock::time_point deadline) {
  constexpr milliseconds kLongest = std::chrono::hours(24 * 365);
  const auto now = Clock::now();
  return deadline <= now ? 0
                         : std::chrono::ceil<milliseconds>(std::min<Clock::duration>(deadline - now, kLongest)).count();
}

class GrpcCall : public rpc::Call {
 public:
  GrpcCall(const Functions& functions, grpc::Call call) : functions_(functions), call_(call) {}
  ~GrpcCall() override { functions_.drop(call_); }
  std::string wait(Clock::time_point deadline) override {
    Text header{};
    Trouble trouble{};
    if (functions_.wait(call_, milliseconds_until(deadline), &header, &trouble) == 0) {
      complain(trouble);
    }
    return {header.data, header.size};
  }
  bool wait_until(Clock::time_point time) override { return functions_.wait_for(call_, milliseconds_until(time)) != 0; }
  bool done() const override { return functions_.done(call_) != 0; }

 private:
  const Functions& functions_;
  grpc::Call call_;
};

class GrpcClient : public rpc::Client {
 public:
  GrpcClient(const std::string& address, const Access& access, Clock::time_point deadline) : functions_(functions()) {
    const Prepared prepared(parse(address), access, false);
    Trouble trouble{};
    if (functions_.connect(prepared.get(), milliseconds_until(deadline), &client_, &trouble) == 0) {
      complain(trouble);
    }
  }
  ~GrpcClient() override { functions_.close(client_); }
  std::shared_ptr<rpc::Call> call(std::string header, std::span<const std::byte> body,
                                  std::span<std::byte> room) override {
    if (header.size() > kLargestHeader) {
      throw Error("rpc", concat("a header of ", header.size(), " bytes is longer than the limit of ", kLargestHeader,
                                " bytes."));
    }
    return std::make_shared<GrpcCall>(
        functions_, functions_.call(client_, text(header), body.data(), body.size(), room.data(), room.size()));
  }
  int64_t bytes_sent() const override { return counted().first; }
  int64_t bytes_received() const override { return counted().second; }

 private:
  std::pair<int64_t, int64_t> counted() const {
    int64_t sent = 0;
    int64_t received = 0;
    functions_.count(client_, &sent, &received);
    return {sent, received};
  }
  const Functions& functions_;
  grpc::Client client_ = nullptr;
};

class GrpcServer : public rpc::Server {
 public:
  GrpcServer(Address address, const Access& access, Descriptor listening = Descriptor())
      : functions_(functions()), address_(std::move(address)), listening_(std::move(listening)) {
    if (is_every_address(address_.host)) {
      throw InputError("rpc", concat(GrpcServer::address(), " means every address of this host."),
                       "Give the one address that the workers use.");
    }
    if (access.secret.empty() && !store::is_loopback(address_.host)) {
      throw InputError(
          "rpc", concat(GrpcServer::address(), " can be reached from other hosts, but there is no secret."),
          "Give all processes of the job the same secret: TRIREME_SECRET_FILE names its file, see docs/security.md.");
    }
    const Prepared prepared(address_, access, true, listening_.get());
    Trouble trouble{};
    if (functions_.serve(prepared.get(), &server_, &address_.port, &trouble) == 0) {
      complain(trouble);
    }
  }
  ~GrpcServer() override { functions_.stop(server_); }
  std::optional<rpc::Event> next(milliseconds timeout) override {
    grpc::Event found{};
    if (functions_.next(server_, timeout.count(), &found) == 0) {
      return std::nullopt;
    }
    rpc::Event event;
    event.kind = found.gone != 0 ? rpc::Event::Kind::gone : rpc::Event::Kind::request;
    event.client = found.client;
    event.id = found.id;
    event.header.assign(found.header.data == nullptr ? "" : found.header.data, found.header.size);
    event.body = {static_cast<const std::byte*>(found.body), found.body_bytes};
    event.room = {static_cast<std::byte*>(found.room), found.room_bytes};
    return event;
  }
  void reply(uint64_t id, std::string header, size_t body_bytes) override {
    functions_.reply(server_, id, text(header), body_bytes);
  }
  std::string address() const override { return concat(address_.tls ? "grpcs://" : "grpc://", address_.target()); }

 private:
  const Functions& functions_;
  Address address_;
  Descriptor listening_; // a socket that already listened, or none
  grpc::Server server_ = nullptr;
};

} // namespace

std::unique_ptr<rpc::Server> serve(const std::string& address, const Access& access) {
  return std::make_unique<GrpcServer>(parse(address), access);
}

std::unique_ptr<rpc::Server> serve(Descriptor listening, bool tls, const Access& access) {
  const Address address{tls, store::bound_host(listening.get()), store::bound_port(listening.get())};
  return std::make_unique<GrpcServer>(address, access, std::move(listening));
}

std::unique_ptr<rpc::Client> connect(const std::string& address, const Access& access, Clock::time_point deadline) {
  return std::make_unique<GrpcClient>(address, access, deadline);
}

std::string version() {
  try {
    return functions().library();
  } catch (const InputError&) {
    return "";
  }
}

} // namespace trireme::rpc::grpc
