#pragma once

#include <trireme/parallel/pipeline/layer.h>

#include <functional>
#include <string>
#include <vector>

namespace trireme::pipeline {

/// Names in checkpoints of all parameters of a list of layers, in order; a shared one occurs once. The same for every
/// partition (PipelineModule::saved_name()). Cost: as Layer::trainable_parameters() of each layer.
std::vector<std::string> parameter_names(const LayerList& layers);

/// The same layers with some parameters frozen: these require no gradient from the moment that their layer is built,
/// before anything shards it, on each of the stages that share them. `is_frozen` gets names in checkpoints.
///
/// A partition counts frozen parameters like others: computing a layer takes about as long.
LayerList frozen(const LayerList& layers, const std::function<bool(const std::string& name)>& is_frozen);

} // namespace trireme::pipeline
