#pragma once

#include <trireme/extensions/server/rpc/rpc.h>

#include <memory>
#include <string>

/// Requests between threads of one process. Bodies and rooms are copied, so that either side may end at any time.
namespace trireme::rpc::local {

/// Errors: InputError if another server of this process has the name.
std::unique_ptr<Server> serve(const std::string& name);
/// Waits until there is a server of that name. Errors: PeerError.
std::unique_ptr<Client> connect(const std::string& name, Clock::time_point deadline);

} // namespace trireme::rpc::local
