#include <trireme/extensions/server/rpc/grpc/module_server.h>

#include <trireme/extensions/server/rpc/grpc/frames.h>
#include <trireme/store/handshake.h>
#include <trireme/store/sockets.h>

#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <optional>

namespace trireme::rpc::grpc {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kGreetingLife{10};
constexpr size_t kMostGreetings = 1024;
/// Time for the last replies after the server was asked to stop.
constexpr std::chrono::seconds kLeave{5};

std::optional<std::string> metadata(const ::grpc::ServerContext& context, const char* key) {
  const auto& all = context.client_metadata();
  const auto found = all.find(key);
  return found == all.end() ? std::nullopt : std::optional(std::string(found->second.data(), found->second.size()));
}

template <typename Bytes>
std::optional<Bytes> fixed(const std::optional<std::string>& text) {
  Bytes bytes;
  if (!text || text->size() != bytes.size()) {
    return std::nullopt;
  }
  std::copy(text->begin(), text->end(), bytes.begin());
  return bytes;
}

/// Sends memory without a copy.
::grpc::Slice slice_of(const std::shared_ptr<Memory>& memory, size_t from, size_t bytes) {
  return {memory->data() + from, bytes, [](void* owner) { delete static_cast<std::shared_ptr<Memory>*>(owner); },
          new std::shared_ptr<Memory>(memory)};
}

} // namespace

struct ModuleServer::Request {
  uint64_t id = 0;
  /// The client's id of the request.
  uint64_t name = 0;
  std::string header;
  std::shared_ptr<Memory> body;
  size_t body_bytes = 0;
  std::shared_ptr<Memory> room;
  size_t room_bytes = 0;
  Shared connection;
};

struct ModuleServer::Reply {
  uint64_t name = 0;
  std::string header;
  std::shared_ptr<Memory> body;
  size_t body_bytes = 0;
  size_t sent = 0;
  bool begun = false;
};

struct ModuleServer::Connection {
  uint64_t number = 0;
  ::grpc::GenericServerContext context;
  ::grpc::GenericServerAsyncReaderWriter stream{&context};

  // Used by the thread alone.
  ::grpc::ByteBuffer incoming;
  std::shared_ptr<Request> arriving;
  size_t arrived = 0;

  // Guarded by the server's mutex.
  bool open = false;
  bool over = false;
  bool finishing = false;
  bool writing = false;
  ::grpc::Status status;
  std::deque<Reply> replies;
};

/// Keeps the connection alive while one of its operations is pending.
struct ModuleServer::Tag {
  Shared connection;
  Step step;
};

ModuleServer::ModuleServer(const Options& options) : settings_(options) {
  keep_log();
  ::grpc::ServerBuilder builder;
  std::unique_ptr<ModuleDoor::Acceptor> acceptor;
  if (settings_.listening >= 0) {
    port_ = store::bound_port(settings_.listening);
    acceptor = builder.experimental().AddExternalConnectionAcceptor(
        ::grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, server_credentials(settings_));
  } else {
    builder.AddListeningPort(settings_.target, server_credentials(settings_), &port_);
  }
  builder.RegisterAsyncGenericService(&service_);
  set_arguments(settings_, [&](const char* name, int value) { builder.AddChannelArgument(name, value); });
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0); // two servers at one port would share the clients
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 16);
  builder.SetMaxReceiveMessageSize(static_cast<int>(kLongestFrame));
  builder.SetMaxSendMessageSize(-1);
  queue_ = builder.AddCompletionQueue();
  server_ = builder.BuildAndStart();
  if (!server_ || port_ == 0) {
    const std::string why = last_log();
    queue_->Shutdown();
    void* tag = nullptr;
    for (bool ok = false; queue_->Next(&tag, &ok);) {
    }
    throw Failure(true, "cannot listen on " + settings_.target + ": " + why + ".",
                  "The port may be in use, or the address may not belong to this host.");
  }
  if (acceptor) {
    door_ = std::make_unique<ModuleDoor>(settings_.listening, std::move(acceptor));
  }
  expect_arrival();
  thread_ = std::thread([this] { run(); });
}

ModuleServer::~ModuleServer() {
  door_.reset();
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    for (const auto& [number, connection] : open_) {
      if (!connection->over && !connection->writing) {
        connection->over = true;
        finish(connection);
      }
    }
    ended_.wait_for(lock, kLeave, [&] { return open_.empty(); });
    stopping_ = true;
    open_.clear();
  }
  server_->Shutdown(std::chrono::system_clock::now());
  queue_->Shutdown();
  thread_.join();
}

void ModuleServer::run() {
  void* raw = nullptr;
  for (bool ok = false; queue_->Next(&raw, &ok);) {
    const std::unique_ptr<Tag> tag(static_cast<Tag*>(raw));
    take(tag->connection, tag->step, ok);
  }
}

/// Handles the end of an operation. No operation starts after the server stops: it would outlive the queue.
void ModuleServer::take(const Shared& connection, Step step, bool ok) {
  try {
    switch (step) {
      case Step::arrive:
        if (ok) {
          expect_arrival();
          arrived(connection);
        }
        return;
      case Step::opened:
        ok ? read(connection) : end(connection, ::grpc::Status::CANCELLED);
        return;
      case Step::read:
        ok ? received(connection) : end(connection, ::grpc::Status::OK);
        return;
      case Step::written:
        written(connection, ok);
        return;
      case Step::finished: {
        const std::lock_guard lock(mutex_);
        open_.erase(connection->number);
        ended_.notify_all();
        return;
      }
    }
  } catch (const BadFrame& error) {
    end(connection, {::grpc::StatusCode::INVALID_ARGUMENT, error.what()});
  } catch (const std::bad_alloc&) {
    end(connection, {::grpc::StatusCode::RESOURCE_EXHAUSTED,
                     "no memory for the body of this request or for the room of its response"});
  } catch (const std::exception& error) {
    end(connection, {::grpc::StatusCode::INTERNAL, error.what()});
  }
}

void ModuleServer::expect_arrival() {
  auto connection = std::make_shared<Connection>();
  const std::lock_guard lock(mutex_);
  if (!stopping_) {
    connection->number = ++last_number_;
    service_.RequestCall(&connection->context, &connection->stream, queue_.get(), queue_.get(),
                         new Tag{connection, Step::arrive});
  }
}

void ModuleServer::arrived(const Shared& connection) {
  const auto& method = connection->context.method();
  if (method == kChallenge) {
    challenge(connection);
  } else if (method == kExchange) {
    open(connection);
  } else {
    end(connection, {::grpc::StatusCode::UNIMPLEMENTED,
                     "this is a Trireme parameter server; it offers Challenge and Exchange of parameter_server.proto"});
  }
}

/// Sends a greeting to any client that asks; nothing else of the request is read.
void ModuleServer::challenge(const Shared& connection) {
  while (!greetings_in_order_.empty()) {
    const auto found = greetings_.find(greetings_in_order_.front());
    if (found != greetings_.end() && found->second > Clock::now() && greetings_.size() < kMostGreetings) {
      break;
    }
    if (found != greetings_.end()) {
      greetings_.erase(found);
    }
    greetings_in_order_.pop_front();
  }
  const auto greeting = store::make_greeting(settings_.job);
  const std::string text(greeting.begin(), greeting.end());
  greetings_.emplace(text, Clock::now() + kGreetingLife);
  greetings_in_order_.push_back(text);
  const ::grpc::Slice slice(encode_bytes(text));
  const ::grpc::ByteBuffer reply(&slice, 1);
  const std::lock_guard lock(mutex_);
  if (!stopping_) {
    connection->over = true;
    connection->finishing = true;
    connection->stream.WriteAndFinish(reply, ::grpc::WriteOptions(), ::grpc::Status::OK,
                                      new Tag{connection, Step::finished});
  }
}

bool ModuleServer::use_greeting(const std::string& greeting) {
  const auto found = greetings_.find(greeting);
  const bool fresh = found != greetings_.end() && found->second > Clock::now();
  if (found != greetings_.end()) {
    greetings_.erase(found);
  }
  return fresh;
}

void ModuleServer::open(const Shared& connection) {
  const auto greeting = fixed<store::Greeting>(metadata(connection->context, kGreetingKey));
  const auto answer = fixed<store::Answer>(metadata(connection->context, kAnswerKey));
  if (!greeting || !answer) {
    end(connection,
        {::grpc::StatusCode::UNAUTHENTICATED,
         "Exchange needs trireme-greeting-bin of 48 and trireme-answer-bin of 64 bytes, see parameter_server.proto"});
    return;
  }
  if (!use_greeting(std::string(greeting->begin(), greeting->end()))) {
    end(connection, {::grpc::StatusCode::UNAUTHENTICATED,
                     "this greeting is unknown, was already used, or is older than 10 seconds"});
    return;
  }
  if (!store::verify_answer(settings_.secret, *greeting, *answer)) {
    end(connection, {::grpc::StatusCode::UNAUTHENTICATED, "wrong secret"});
    return;
  }
  const auto proof = store::make_proof(settings_.secret, *greeting, *answer);
  connection->context.AddInitialMetadata(kProofKey, std::string(proof.begin(), proof.end()));
  const std::lock_guard lock(mutex_);
  if (!closing_) {
    connection->open = true;
    open_.emplace(connection->number, connection);
    connection->stream.SendInitialMetadata(new Tag{connection, Step::opened});
  }
}

void ModuleServer::read(const Shared& connection) {
  const std::lock_guard lock(mutex_);
  if (!stopping_ && !connection->over) {
    connection->stream.Read(&connection->incoming, new Tag{connection, Step::read});
  }
}

void ModuleServer::received(const Shared& connection) {
  std::vector<::grpc::Slice> slices;
  if (!connection->incoming.Dump(&slices).ok()) {
    throw BadFrame("a frame cannot be read (is it compressed?)");
  }
  std::vector<FrameReader::Piece> pieces;
  for (const auto& slice : slices) {
    pieces.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
  }
  FrameReader reader(std::move(pieces));
  const Frame& frame = reader.frame();
  auto& request = connection->arriving;
  if (!request) {
    request = std::make_shared<Request>();
    request->name = frame.id;
    request->header = frame.header;
    request->body_bytes = frame.body_bytes;
    request->room_bytes = frame.room_bytes;
    request->body = memory_.take(frame.body_bytes);
    request->room = memory_.take(frame.room_bytes);
    request->connection = connection;
    connection->arrived = 0;
  } else if (frame.id != request->name || !frame.header.empty() || frame.body_bytes != 0 || frame.room_bytes != 0) {
    throw BadFrame("another message begins before the body of request " + std::to_string(request->name) +
                   " is complete");
  } else if (frame.part_bytes == 0) {
    throw BadFrame("a frame of request " + std::to_string(request->name) + " is empty");
  }
  if (frame.part_bytes > request->body_bytes - connection->arrived) {
    throw BadFrame("the body of request " + std::to_string(request->name) + " is longer than its body_bytes");
  }
  reader.copy_part(request->body->data() + connection->arrived);
  connection->arrived += frame.part_bytes;
  if (connection->arrived == request->body_bytes) {
    complete(connection);
  }
  read(connection);
}

void ModuleServer::complete(const Shared& connection) {
  auto request = std::move(connection->arriving);
  connection->arriving = nullptr;
  const std::lock_guard lock(mutex_);
  request->id = ++last_number_;
  Event event{};
  event.client = connection->number;
  event.id = request->id;
  event.header = {request->header.data(), request->header.size()};
  event.body = request->body->data();
  event.body_bytes = request->body_bytes;
  event.room = request->room->data();
  event.room_bytes = request->room_bytes;
  requests_.emplace(request->id, std::move(request));
  events_.push_back(event);
  news_.notify_one();
}

bool ModuleServer::next(std::chrono::milliseconds timeout, Event* event) {
  std::unique_lock lock(mutex_);
  if (!news_.wait_for(lock, timeout, [&] { return !events_.empty(); })) {
    return false;
  }
  *event = events_.front();
  events_.pop_front();
  return true;
}

void ModuleServer::reply(uint64_t id, std::string header, size_t body_bytes) {
  Shared connection;
  {
    const std::lock_guard lock(mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end()) {
      return;
    }
    const auto request = found->second;
    requests_.erase(found);
    connection = request->connection;
    if (connection->over || stopping_) {
      return;
    }
    connection->replies.push_back(
        {request->name, std::move(header), request->room, std::min(body_bytes, request->room_bytes), 0, false});
    if (connection->writing) {
      return;
    }
    connection->writing = true;
    send_part(connection);
  }
}

/// Sends the next part; call it with the mutex and with `writing` set.
void ModuleServer::send_part(const Shared& connection) {
  Reply& reply = connection->replies.front();
  Frame frame;
  frame.id = reply.name;
  frame.part_bytes = std::min(kPartBytes, reply.body_bytes - reply.sent);
  if (!reply.begun) {
    reply.begun = true;
    frame.header = std::move(reply.header);
    frame.body_bytes = reply.body_bytes;
  }
  std::vector<::grpc::Slice> slices = {::grpc::Slice(encode(frame))};
  if (frame.part_bytes != 0) {
    slices.push_back(slice_of(reply.body, reply.sent, frame.part_bytes));
  }
  reply.sent += frame.part_bytes;
  if (reply.sent == reply.body_bytes) {
    connection->replies.pop_front();
  }
  const ::grpc::ByteBuffer message(slices.data(), slices.size());
  connection->stream.Write(message, new Tag{connection, Step::written});
}

void ModuleServer::written(const Shared& connection, bool ok) {
  const std::lock_guard lock(mutex_);
  connection->writing = false;
  if (stopping_) {
    return;
  }
  if (connection->over || (closing_ && connection->replies.empty())) {
    connection->over = true;
    finish(connection);
  } else if (ok && !connection->replies.empty()) { // if it is not ok, reading ends too
    connection->writing = true;
    send_part(connection);
  }
}

void ModuleServer::end(const Shared& connection, const ::grpc::Status& status) {
  const std::lock_guard lock(mutex_);
  const bool first = !connection->over;
  connection->over = true;
  if (first && connection->open) {
    connection->arriving = nullptr;
    connection->replies.clear();
    Event event{};
    event.gone = 1;
    event.client = connection->number;
    events_.push_back(event);
    news_.notify_one();
  }
  if (first) {
    connection->status = status;
  }
  if (stopping_) {
    return;
  }
  if (!connection->writing) { // otherwise the pending write ends first, and written() calls finish()
    finish(connection);
  }
}

/// Call it with the mutex.
void ModuleServer::finish(const Shared& connection) {
  if (!connection->finishing) {
    connection->finishing = true;
    connection->stream.Finish(connection->status, new Tag{connection, Step::finished});
  }
}

} // namespace trireme::rpc::grpc
