// Connects a client, and distinguishes permanent errors from temporary ones.
#include <trireme/extensions/server/rpc/grpc/frames.h>
#include <trireme/extensions/server/rpc/grpc/module_client.h>
#include <trireme/store/handshake.h>

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <optional>

namespace trireme::rpc::grpc {
namespace {

using Clock = ModuleClient::Clock;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{3000};
constexpr milliseconds kRetry{50};

gpr_timespec in(Clock::duration time) {
  constexpr Clock::duration kLongest = std::chrono::hours(1000);
  const auto left = std::chrono::ceil<milliseconds>(std::min(time, kLongest)).count();
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(std::max<int64_t>(left, 1), GPR_TIMESPAN));
}

std::string text_of(const ::grpc::ByteBuffer& buffer) {
  ::grpc::Slice slice;
  if (!buffer.Valid() || !buffer.DumpToSingleSlice(&slice).ok()) {
    return "";
  }
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

} // namespace

void ModuleClient::refuse(const std::string& happened, const std::string& next) {
  throw Failure(true, happened, next);
}

/// Throws if a retry cannot help.
void ModuleClient::judge(const ::grpc::Status& status) {
  const std::string& why = status.error_message();
  last_why_ = why;
  const std::string server = "the parameter server at " + settings_.target;
  switch (status.error_code()) {
    case ::grpc::StatusCode::UNAUTHENTICATED:
      if (has(why, "wrong secret")) {
        refuse("the secret is wrong: " + server + " does not accept that of this process.",
               "Start servers and workers with the same secret: TRIREME_SECRET_FILE names its file.");
      }
      return;
    case ::grpc::StatusCode::UNIMPLEMENTED:
      refuse("the process that listens on " + settings_.target +
                 " speaks gRPC but is not a parameter server of Trireme (" + why + ").",
             "Give the address that the server printed.");
    case ::grpc::StatusCode::UNAVAILABLE:
      if (has(why, "certificate verify failed") || has(why, "CERTIFICATE_VERIFY_FAILED")) {
        refuse(
            "the certificate of " + server + " is not signed by an authority that this process trusts (" + why + ").",
            "Set TRIREME_TLS_CA to the file with the certificate of the authority that signed the server's.");
      }
      if (has(why, "is not in peer certificate") || has(why, "Hostname Verification")) {
        refuse("the certificate of " + server + " is for another name (" + why + ").",
               "Connect by a name in the certificate (subjectAltName), or make a certificate with this name.");
      }
      if (has(why, "WRONG_VERSION_NUMBER") || has(why, "wrong version number")) {
        refuse(server + " does not speak TLS.",
               "Connect to it as grpc://" + settings_.target + ", or start it as grpcs://.");
      }
      return;
    default:
      return;
  }
}

bool ModuleClient::waited(Step step, Clock::time_point deadline) {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->AsyncNext(&tag, &ok, in(deadline - std::min(deadline, Clock::now()))) ==
         ::grpc::CompletionQueue::GOT_EVENT) {
    if (tag == reinterpret_cast<void*>(step)) {
      return ok;
    }
  }
  return false;
}

/// Waits until no operation of the stream is pending; called without the thread.
void ModuleClient::drop_stream() {
  if (stream_) {
    context_->TryCancel();
    if (!finishing_) {
      stream_->Finish(&status_, reinterpret_cast<void*>(kFinished));
    }
  }
  queue_->Shutdown();
  void* tag = nullptr;
  for (bool ok = false; queue_->Next(&tag, &ok);) {
  }
  stream_ = nullptr;
  context_ = nullptr;
  queue_ = nullptr;
  finishing_ = false;
}

::grpc::Status ModuleClient::status_of_stream(Clock::time_point deadline) {
  finishing_ = true;
  stream_->Finish(&status_, reinterpret_cast<void*>(kFinished));
  return waited(kFinished, deadline) ? status_
                                     : ::grpc::Status(::grpc::StatusCode::DEADLINE_EXCEEDED, "it does not answer");
}

/// Returns the server's greeting, or sets `status` to the error.
std::string ModuleClient::challenge(Clock::time_point deadline, ::grpc::Status& status) {
  ::grpc::ClientContext context;
  context.set_deadline(in(std::min(deadline - Clock::now(), Clock::duration(kPatience))));
  const ::grpc::Slice nothing;
  const ::grpc::ByteBuffer request(&nothing, 1);
  ::grpc::ByteBuffer reply;
  const auto call = stub_->PrepareUnaryCall(&context, kChallenge, request, queue_.get());
  call->StartCall();
  call->Finish(&reply, &status, reinterpret_cast<void*>(kFinished));
  waited(kFinished, Clock::time_point::max()); // the call has its own deadline
  return status.ok() ? decode_bytes(text_of(reply)) : "";
}

/// Opens the stream. Outcome::again: a retry may help.
ModuleClient::Outcome ModuleClient::attempt(Clock::time_point deadline) {
  queue_ = std::make_unique<::grpc::CompletionQueue>();
  ::grpc::Status status;
  const std::string text = challenge(deadline, status);
  if (!status.ok()) {
    judge(status);
    return Outcome::again;
  }
  store::Greeting greeting{};
  std::copy_n(text.begin(), std::min(text.size(), greeting.size()), greeting.begin());
  const auto kind = store::judge_greeting(greeting, settings_.job);
  if (text.size() != greeting.size() || kind == store::GreetingKind::foreign ||
      kind == store::GreetingKind::of_another_version) {
    refuse("the parameter server at " + settings_.target + " has another version of Trireme.",
           "Start servers and workers from the same build.");
  }
  if (kind == store::GreetingKind::of_another_job) {
    refuse("the parameter server at " + settings_.target + " belongs to another job" +
               (settings_.job.empty() ? "" : " (this is job \"" + settings_.job + "\")") + ".",
           "Give the address that this job's server printed.");
  }
  const auto answer = store::make_answer(settings_.secret, greeting);
  context_ = std::make_unique<::grpc::ClientContext>();
  context_->AddMetadata(kGreetingKey, text);
  context_->AddMetadata(kAnswerKey, std::string(answer.begin(), answer.end()));
  stream_ = stub_->PrepareCall(context_.get(), kExchange, queue_.get());
  stream_->StartCall(reinterpret_cast<void*>(kBegun));
  const auto until = std::min(deadline, Clock::now() + kPatience);
  if (!waited(kBegun, until)) {
    judge(status_of_stream(until));
    return Outcome::again;
  }
  stream_->ReadInitialMetadata(reinterpret_cast<void*>(kOpened));
  const bool opened = waited(kOpened, until);
  const auto& metadata = context_->GetServerInitialMetadata();
  const auto proof = opened ? metadata.find(kProofKey) : metadata.end();
  if (!opened || proof == metadata.end()) {
    judge(status_of_stream(until)); // the stream has ended with a status that tells why
    return Outcome::again;
  }
  store::Proof bytes{};
  std::copy_n(proof->second.begin(), std::min(proof->second.size(), bytes.size()), bytes.begin());
  if (proof->second.size() != bytes.size() || !store::verify_proof(settings_.secret, greeting, answer, bytes)) {
    refuse(
        "the secret is wrong: this process does not accept that of the parameter server at " + settings_.target + ".",
        "Start servers and workers with the same secret: TRIREME_SECRET_FILE names its file.");
  }
  return Outcome::opened;
}

ModuleClient::ModuleClient(const Options& options) : settings_(options) {
  keep_log();
  ::grpc::ChannelArguments arguments;
  set_arguments(settings_, [&](const char* name, int value) { arguments.SetInt(name, value); });
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1); // a new connection, also after a broken one
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kLongestFrame));
  arguments.SetMaxSendMessageSize(-1);
  channel_ = ::grpc::CreateCustomChannel(settings_.target, channel_credentials(settings_), arguments);
  stub_ = std::make_unique<::grpc::GenericStub>(channel_);
}

std::shared_ptr<ModuleClient> ModuleClient::connect(const Options& options, Clock::time_point deadline) {
  const std::shared_ptr<ModuleClient> made(new ModuleClient(options));
  while (!made->tried(deadline)) {
    if (Clock::now() + kRetry >= deadline) {
      made->give_up();
    }
    // Does not sleep, because gRPC must make progress with the connection.
    made->channel_->WaitForConnected(in(kRetry));
  }
  made->stream_->Read(&made->incoming_, reinterpret_cast<void*>(kRead));
  made->thread_ = std::thread([made] { made->run(); });
  return made;
}

bool ModuleClient::tried(Clock::time_point deadline) {
  try {
    if (attempt(deadline) == Outcome::opened) {
      return true;
    }
  } catch (...) {
    drop_stream();
    throw;
  }
  drop_stream();
  return false;
}

void ModuleClient::give_up() {
  // A server that rejects a client's first bytes closes the connection without a status.
  throw Failure(false,
                "the parameter server at " + settings_.target + " does not answer" +
                    (last_why_.empty() ? "" : " (" + last_why_ + ")") + ".",
                !has(last_why_, "Socket closed") ? "Check that it is running and that this is its address."
                : settings_.tls
                    ? "It may require client certificates of an authority that it trusts: see TRIREME_TLS_CERTIFICATE "
                      "in docs/grpc.md."
                    : "It may use TLS (then connect to it as grpcs://" + settings_.target + ") or another protocol.");
}

} // namespace trireme::rpc::grpc
