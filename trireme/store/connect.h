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
    nobody,        ///< nothing listens, or the host name is unknown
    not_a_store,   ///< the listener does not speak our protocol
    other_version, ///< a store of another version of Trireme
    other_job,     ///< the store of another job
    wrong_secret,  ///< one side does not know the other's secret
  };
  ConnectError(Reason reason, const std::string& happened, const std::string& next)
      : PeerError("store", happened, next), reason(reason), happened(happened), next(next) {}
  /// 2 (user's input) if another attempt cannot succeed.
  int exit_code() const noexcept override { return reason == Reason::nobody || reason == Reason::not_a_store ? 1 : 2; }
  Reason reason;
  std::string happened;
  std::string next;
};

/// Connects to the listener; both sides prove that they belong to the job (handshake.h). Retries until `deadline` while
/// nothing listens or the connection breaks. Fails at once for another program or another job's listener. Returns a
/// non-blocking socket. Errors: ConnectError.
Descriptor connect_and_prove(const Endpoint& endpoint, const SecretSource& source, const std::string& job,
                             std::chrono::steady_clock::time_point deadline);

} // namespace trireme::store
