#pragma once

#include <string>

namespace trireme::comm {

/// Sets the advice for errors and warnings about operations that only some ranks call in groups of this name. Every
/// rank gives it instead of the general advice. Thread-safe.
void set_advice(const std::string& group, const std::string& advice);

/// The advice for groups of this name, "" if none is set.
std::string advice_for(const std::string& group);

/// The advice at the end of another rank's error, "" if it is none of these.
std::string advice_in(const std::string& error);

} // namespace trireme::comm
