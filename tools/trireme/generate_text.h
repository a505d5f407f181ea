#pragma once

#include "commands.h"

namespace trireme::tools {

int generate_text(const GenerateCommand& command);

} // namespace trireme::tools
