#pragma once

#include <string>

namespace torch::optim {
class Optimizer;
}

namespace trireme::horovod {

/// Serializes group options and states of any torch optimizer.
std::string bytes_of(const torch::optim::Optimizer& optimizer);
/// Loads `bytes` of an optimizer with the same groups. All parameters must be on one device.
void load_bytes(torch::optim::Optimizer& optimizer, const std::string& bytes);

} // namespace trireme::horovod
