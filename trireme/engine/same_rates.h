#pragma once

#include <trireme/comm/group.h>

#include <string>
#include <vector>

namespace trireme::engine {

/// Compares the learning rates of the parameter groups among ranks: if a program sets them differently, the models
/// drift apart and nothing reports it. Collective. Errors: InputError on every rank, with `where` and the rates.
void check_same_rates(const comm::Group& ranks, const std::vector<double>& rates, const std::string& where);

} // namespace trireme::engine
