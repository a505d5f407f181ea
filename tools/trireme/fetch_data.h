#pragma once

#include "commands.h"

namespace trireme::tools {

/// `trireme data fetch`.
int fetch_data(const DataFetchCommand& command);

} // namespace trireme::tools
