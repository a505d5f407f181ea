#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>

#include <nlohmann/json.hpp>

#include <functional>

namespace trireme::engine {

/// The options that must be equal on every rank, by their JSON names: everything except folders of files, the section
/// "aio", what is printed, and the batch sizes, which check_same_sizes() compares once resolved.
nlohmann::ordered_json compared_options(const config::EngineConfig& config);

/// Compares all options of initialize() on these ranks before any other communication: differences would make ranks
/// hang, or their models drift apart. Collective. Cost: 8 bytes per rank; all options if some differ. Errors:
/// InputError on every rank with the first option that differs, its values and the ranks.
void check_same_options(const comm::Group& ranks, const InitializeOptions& options);
/// Compares what follows from the options on each rank: batch sizes, type of computation, kind of device.
void check_same_sizes(const Parts& parts);

/// Calls f(); if it throws on some ranks, throws on all of them, so that no rank waits for one that failed. Collective.
/// Errors: Error or InputError naming the ranks.
void check_together(const comm::Group& ranks, const std::function<void()>& f);

/// Calls f() on rank 0, in a thread, however long it takes: the other ranks hear four times a second that it goes on,
/// so no time-out of the group ends their wait. f() communicates with nobody. Collective. Errors: those of f(), on
/// every rank; PeerError if a rank is lost.
void call_on_first(const comm::Group& ranks, const std::function<void()>& f);

/// The same on one rank of each host, at the same time.
void call_on_each_host(const comm::World& world, const std::function<void()>& f);

} // namespace trireme::engine
