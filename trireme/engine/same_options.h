#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>

#include <nlohmann/json.hpp>

#include <functional>

namespace trireme::engine {

/// All of the configuration that has to be equal on every rank, by the names of its JSON: all of it but the folders for
/// files, the section "aio", what is printed, and the batch sizes, which check_same_sizes() compares as they are
/// resolved.
nlohmann::ordered_json compared_options(const config::EngineConfig& config);

/// Compares every option of initialize() on these ranks before anything waits for it: what differs would make ranks
/// wait in vain or their models drift apart. Collective. Cost: 8 bytes from each rank, and all options where some
/// differ. Errors: InputError on every rank with the first option that differs, its values and the ranks.
void check_same_options(const comm::Group& ranks, const InitializeOptions& options);
/// The same of what follows from them here: batch sizes, the type of computation, the kind of device.
void check_same_sizes(const Parts& parts);

/// Calls f(), and throws on every rank what it throws on some: a rank that is refused shall not leave the others
/// waiting. Collective. Errors: Error or InputError naming the ranks.
void check_together(const comm::Group& ranks, const std::function<void()>& f);

} // namespace trireme::engine
