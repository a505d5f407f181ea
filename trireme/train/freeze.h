#pragma once

#include <trireme/config/freeze.h>
#include <trireme/parallel/pipeline/layer.h>

namespace torch::nn {
class Module;
}

namespace trireme::train {

/// Freezes the parameters of a model in one piece that "training.freeze" matches. Every rank has all names and decides
/// the same. Errors: InputError with the place of an expression that matches none or cannot be used, or if nothing is
/// left to train.
void freeze(const config::FreezeOptions& options, torch::nn::Module& model);

/// The same for a list of layers, of which each freezes its own parameters when it is built (pipeline/frozen.h).
pipeline::LayerList frozen(const config::FreezeOptions& options, pipeline::LayerList layers);

} // namespace trireme::train
