#pragma once

#include <trireme/comm/group.h>
#include <trireme/data/dataset.h>

#include <string>

namespace trireme::engine {

/// Compares a data set called `name` ("the validation data"; nullptr: none) between these ranks, as
/// check_same_options() does it for training_data: its number of samples, the sets of a mixture, and checksums where
/// they are known. Collective. Cost: 8 bytes per rank. Errors: InputError on every rank.
void check_same_data(const comm::Group& ranks, const data::Dataset* data, const std::string& name);

} // namespace trireme::engine
