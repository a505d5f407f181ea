#pragma once

#include "commands.h"

namespace trireme::tools {

/// `trireme schedule`: prints the timeline of a schedule or of a trace, and writes the image.
int show_schedule(const ScheduleCommand& command);

} // namespace trireme::tools
