#pragma once

#include <trireme/config/compatibility.h>
#include <trireme/plan/layout.h>

#include <optional>

namespace trireme::plan {

/// The first row of config/compatibility.h that the layout breaks. `on_gpu`: masters and states can leave a GPU for its
/// host.
std::optional<config::Conflict> find_conflict(const Job& job, const Layout& layout, bool on_gpu);

} // namespace trireme::plan
