#pragma once

#include "commands.h"

namespace trireme::tools {

/// `trireme store`: rendezvous of ranks that join and leave. Returns 0 after SIGTERM, SIGINT or SIGHUP.
int run_store(const StoreCommand& command);

} // namespace trireme::tools
