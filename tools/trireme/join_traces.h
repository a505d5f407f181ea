#pragma once

#include <trireme/comm/world.h>

#include <filesystem>

namespace trireme::tools {

/// Ends tracing, and joins what every rank has recorded in `folder`/trace.json. Collective. A trace that cannot be
/// written is only a warning.
void join_traces(comm::World& world, const std::filesystem::path& folder);

} // namespace trireme::tools
