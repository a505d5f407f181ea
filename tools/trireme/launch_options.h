#pragma once

#include "commands.h"

#include <trireme/launch/launcher.h>

namespace trireme::tools {

/// For each of a job's servers, for all tasks together, unless --max-restarts says another number.
inline constexpr int kRestartsOfAServer = 3;

/// What the options say that train and launch share. Errors: InputError for the hostfile and for --env.
launch::LaunchOptions launch_options(const PlacesCommand& command);

/// trireme-rank beside this program. Errors: Error when it is missing.
std::filesystem::path rank_program();

} // namespace trireme::tools
