#pragma once

#include <trireme/config/key_table.h>

// One letter for each verdict, so that a key is one line of its table. For the sources of the tables only.
namespace trireme::config {

inline constexpr auto H = Verdict::honoured;
inline constexpr auto N = Verdict::no_effect;
inline constexpr auto L = Verdict::not_yet;
inline constexpr auto R = Verdict::refused;

} // namespace trireme::config
