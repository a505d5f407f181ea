#pragma once

#include <trireme/models/options.h>
#include <trireme/parallel/pipeline/module.h>

namespace trireme::models {

/// Makes AlexNet as one flat list of layers: features, average pooling, a function that flattens, classifier.
///
/// Layers, order and parameter names ("features.0.weight", "classifier.1.weight") are torchvision's. Returns
/// logits [B, classes]. The first convolutions shrink an image 32 times, so images of 32 or 28 pixels (CIFAR-10,
/// Fashion-MNIST) need AlexNetOptions::resize, a layer that enlarges them bilinearly. Size 224 is the network's
/// original size; 64 keeps it trainable at about an eighth of the arithmetic. Initial values are those of init_from,
/// or depend on `seed` and name only. Errors: InputError for a resize from 1 to 62, and for weights that are not an
/// AlexNet's (values_in()); an exception of libtorch's pooling for images below 63.
pipeline::LayerList alexnet_layers(const AlexNetOptions& options);

/// Number of rows of logits [B, classes] whose largest is that of labels [B]: [], int64.
at::Tensor count_right_labels(const pipeline::Tensors& outputs, const pipeline::Tensors& targets);

/// Mean cross-entropy of logits [B, classes] against labels [B], in nats.
at::Tensor label_loss(const pipeline::Tensors& outputs, const pipeline::Tensors& targets);

} // namespace trireme::models
