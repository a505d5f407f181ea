#pragma once

#include <string>

namespace torch::optim {
class Optimizer;
}

namespace trireme::horovod {

/// The options of an optimizer's groups and its states, of any of torch's optimizers.
std::string bytes_of(const torch::optim::Optimizer& optimizer);
/// Makes them those of `bytes`, from an optimizer of the same groups. Parameters are on one device.
void load_bytes(torch::optim::Optimizer& optimizer, const std::string& bytes);

} // namespace trireme::horovod
