#pragma once

#include <trireme/models/options.h>
#include <trireme/parallel/pipeline/module.h>

namespace trireme::models {

/// Makes AlexNet as one flat list of layers: features, average pooling, a function that flattens, classifier.
///
/// The same layers in the same order and the same parameter names ("features.0.weight", "classifier.1.weight")
/// as torchvision's; returns logits [B, classes]. Its first convolutions shrink an image 32 times, so images of 32 or
/// 28 pixels (CIFAR-10, Fashion-MNIST) need AlexNetOptions::resize: a function in front enlarges them bilinearly. 224
/// is what the network was made for; 64 keeps it trainable at about an eighth of the arithmetic. First values depend on
/// `seed` and name only. Errors: InputError for a resize from 1 to 62; an exception of libtorch's pooling for images
/// below 63.
pipeline::LayerList alexnet_layers(const AlexNetOptions& options);

/// Mean cross-entropy of logits [B, classes] against labels [B], in nats.
at::Tensor label_loss(const pipeline::Tensors& outputs, const pipeline::Tensors& targets);

} // namespace trireme::models
