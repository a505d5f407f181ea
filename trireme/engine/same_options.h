#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>

#include <functional>

namespace trireme::engine {

/// Compares what has to be equal on all ranks before anything waits for it. Collective. Errors: InputError on every rank, naming what
/// differs and on which ranks.
void check_same_options(const Parts& parts, const InitializeOptions& options);

/// Calls f(), and throws on every rank what it throws on some: a rank that is refused shall not leave the others waiting. Collective.
/// Errors: Error or InputError naming the ranks.
void check_together(const comm::Group& ranks, const std::function<void()>& f);

} // namespace trireme::engine
