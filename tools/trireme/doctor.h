#pragma once

#include "commands.h"

namespace trireme::tools {

/// Says what this machine and this build can do; status 1 when something is broken.
int doctor(const DoctorCommand& command);

} // namespace trireme::tools
