#pragma once

#include "commands.h"

namespace trireme::tools {

/// `trireme store`: the meeting point of ranks that come and go. Ends with 0 after SIGTERM, SIGINT or SIGHUP.
int run_store(const StoreCommand& command);

} // namespace trireme::tools
