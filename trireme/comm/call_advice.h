#pragma once

#include <string>

namespace trireme::comm {

/// Says what to do when only some ranks call the operations of groups of this name: errors and warnings about them say
/// it on every rank, in place of the general advice. Thread-safe.
void set_advice(const std::string& group, const std::string& advice);

/// What set_advice() was given for groups of this name, "" for others.
std::string advice_for(const std::string& group);

/// The advice that the error of another rank ends with, "" if it is none of these.
std::string advice_in(const std::string& error);

} // namespace trireme::comm
