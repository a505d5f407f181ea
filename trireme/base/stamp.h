#pragma once

#include <string>

namespace trireme {

/// 32 random hexadecimal digits.
std::string random_id();

/// "2026-11-28T03:13:05Z".
std::string utc_now();

} // namespace trireme
