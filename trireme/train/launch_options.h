#pragma once

#include <trireme/train/commands.h>

#include <trireme/launch/launcher.h>

namespace trireme::train {

/// Restarts per server of a job, for all tasks in total, unless --max-restarts is given.
inline constexpr int kRestartsOfAServer = 3;

/// Converts the options that train and launch share. Errors: InputError for the hostfile and for --env.
launch::LaunchOptions launch_options(const PlacesCommand& command);

/// trireme-rank beside this program. Errors: Error when it is missing.
std::filesystem::path rank_program();

} // namespace trireme::train
