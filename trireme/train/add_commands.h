#pragma once

#include <trireme/train/commands.h>

#include <CLI/CLI.hpp>

#include <functional>

// The commands of a run file in a command line of CLI11.
namespace trireme::train {

/// A number from `least` to `most`. CLI11's own checks name the largest representable number, and accept 0 as positive.
CLI::Validator at_least(int64_t least, double most = 1e15);
/// Number of ranks, hosts or restarts: an int.
CLI::Validator count_from(int64_t least);

/// The options of PlacesCommand. `restarts`: the help of --max-restarts.
void add_places(CLI::App* command, PlacesCommand& places, double grace, const char* restarts);

/// Adds the command; its parsing fills the struct and calls `parsed`. Examples begin with the name of `app`.
void add_train(CLI::App& app, TrainCommand& train, const std::function<void()>& parsed);
void add_estimate(CLI::App& app, EstimateCommand& estimate, const std::function<void()>& parsed);
void add_plan(CLI::App& app, PlanCommand& plan, const std::function<void()>& parsed);

} // namespace trireme::train
