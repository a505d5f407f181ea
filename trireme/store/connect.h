#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/store/secret.h>
#include <trireme/store/sockets.h>

#include <chrono>
#include <string>

namespace trireme::store {

/// Why a connection failed.
class ConnectError : public PeerError {
 public:
  enum class Reason {
    nobody,        ///< nobody listens, or the host name is unknown
    not_a_store,   ///< somebody listens who does not speak our protocol
    other_version, ///< a store of another version of Trireme
    other_job,     ///< the store of another job
    wrong_secret,  ///< one side does not know the other's secret
  };
  ConnectError(Reason reason, const std::string& happened, const std::string& next)
      : PeerError("store", happened, next), reason(reason), happened(happened), next(next) {}
  /// 2, the user's input, for what another attempt would not change.
  int exit_code() const noexcept override {
    return reason == Reason::nobody || reason == Reason::not_a_store ? 1 : 2;
  }
  Reason reason;
  std::string happened;
  std::string next;
};

/// Connects to who listens there, and both sides prove that they belong to the job (handshake.h). Retries until
/// `deadline` while nobody listens or the connection breaks; fails at once for another job's listener or another
/// program. Returns a non-blocking socket. Errors: ConnectError.
Descriptor connect_and_prove(const Endpoint& endpoint, const SecretSource& source, const std::string& job,
                             std::chrono::steady_clock::time_point deadline);

} // namespace trireme::store
