#pragma once

#include <trireme/train/registry.h>

#include <functional>

namespace trireme::train {

/// The main() of a program that trains its own models and data as `trireme train` does:
///
///   int main(int argc, char** argv) {
///     trireme::Registry registry;
///     registry.model("mine", ...);
///     registry.data("my_data", ...);
///     return trireme::train_main(argc, argv, registry);
///   }
///
///   PROGRAM train RUN.json -n 4 --max-restarts 2
///
/// The commands train, estimate and plan, with the options of `trireme`'s. The program starts itself as the ranks; on
/// other hosts it must be at the same path. plan is for the types gpt only. Returns the exit status: 0 done, 2 the
/// input is wrong, 1 anything else. docs/own_model.md.
int train_main(int argc, char** argv, const Registry& registry);

/// Runs `program` as main() does: reports what it throws, and returns the exit status.
int run_program(const std::function<int()>& program);

} // namespace trireme::train

namespace trireme {

using train::DataContext;
using train::Keys;
using train::ModelContext;
using train::ModelType;
using train::Registry;
using train::train_main;

} // namespace trireme
