#pragma once

#include <trireme/comm/world.h>

#include <filesystem>

namespace trireme::train {

/// Ends tracing, and joins the traces of all ranks in `folder`/trace.json. Collective. Warns if a trace cannot be
/// written.
void join_traces(comm::World& world, const std::filesystem::path& folder);

} // namespace trireme::train
