#pragma once

#include "commands.h"

namespace trireme::tools {

int export_folder(const ExportCommand& command);

} // namespace trireme::tools
