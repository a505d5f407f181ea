#pragma once

#include <trireme/config/compatibility.h>
#include <trireme/plan/layout.h>

#include <optional>

namespace trireme::plan {

/// The first row of config/compatibility.h that the layout violates. `on_gpu`: masters and states can be offloaded from
/// a GPU to its host.
std::optional<config::Conflict> find_conflict(const Job& job, const Layout& layout, bool on_gpu);

} // namespace trireme::plan
