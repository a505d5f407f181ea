#pragma once

#include <trireme/extensions/server/rpc/grpc/grpc_functions.h>
#include <trireme/store/secret.h>

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace trireme::rpc::grpc {

inline constexpr const char* kChallenge = "/trireme.rpc.v1.ParameterServer/Challenge";
inline constexpr const char* kExchange = "/trireme.rpc.v1.ParameterServer/Exchange";
inline constexpr const char* kGreetingKey = "trireme-greeting-bin";
inline constexpr const char* kAnswerKey = "trireme-answer-bin";
inline constexpr const char* kProofKey = "trireme-proof-bin";

/// An error that becomes a Trouble in the module's functions.
class Failure : public std::runtime_error {
 public:
  Failure(bool input, const std::string& happened, const std::string& next)
      : std::runtime_error(happened), input(input), next(next) {}
  bool input;
  std::string next;
};

std::string_view view(Text text);
std::string string(Text text);
void fill(Trouble* trouble, bool input, std::string_view happened, std::string_view next);

/// Copies of Options, which are valid only during a call.
struct Settings {
  explicit Settings(const Options& options);

  std::string target;
  int listening;
  bool tls;
  std::string certificate;
  std::string key;
  std::string authority;
  store::Secret secret;
  std::string job;
  int ask_after_ms;
  int give_up_after_ms;
};

/// Errors of both: Failure if certificate and key are not PEM or are not a pair.
std::shared_ptr<::grpc::ServerCredentials> server_credentials(const Settings& settings);
std::shared_ptr<::grpc::ChannelCredentials> channel_credentials(const Settings& settings);
/// Sets keepalive pings, and windows for long bodies.
void set_arguments(const Settings& settings, const std::function<void(const char*, int)>& set);

/// Keeps the last error line of gRPC's log instead of writing it to stderr, unless GRPC_VERBOSITY is set.
void keep_log();
std::string last_log();

} // namespace trireme::rpc::grpc
