#pragma once

#include "commands.h"

namespace trireme::tools {

/// Prints the capabilities of this machine and this build; returns 1 if something is broken.
int doctor(const DoctorCommand& command);

} // namespace trireme::tools
