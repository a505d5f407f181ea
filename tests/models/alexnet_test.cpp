#include <trireme/base/error.h>
#include <trireme/models/alexnet_layers.h>

#include <gmock/gmock.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

namespace trireme::models {
namespace {

using pipeline::PipelineModule;

std::shared_ptr<PipelineModule> built(const AlexNetOptions& options) {
  auto model = std::make_shared<PipelineModule>(alexnet_layers(options), label_loss);
  model->build();
  return model;
}

TEST(AlexNetTest, HasTorchvisionsParameters) {
  AlexNetOptions options;
  options.classes = 1000;
  int64_t count = 0;
  for (const pipeline::Layer& layer : alexnet_layers(options)) {
    count += layer.trainable_parameters();
  }
  EXPECT_EQ(count, 61100840) << "what torchvision documents for its AlexNet";
  options.hidden = 8;
  const auto parameters = built(options)->named_parameters();
  for (const char* name : {"features.0.weight", "features.3.bias", "features.6.weight", "features.8.weight",
                           "features.10.weight", "classifier.1.weight", "classifier.4.weight", "classifier.6.bias"}) {
    EXPECT_TRUE(parameters.contains(name)) << name;
  }
  EXPECT_EQ(parameters.size(), 16u);
}

TEST(AlexNetTest, TakesLargeImagesAsTheyAreAndEnlargesSmallOnes) {
  AlexNetOptions options;
  options.hidden = 16;
  const torch::NoGradGuard no_grad;
  auto model = built(options);
  EXPECT_EQ(model->forward(torch::rand({2, 3, 63, 70})).sizes(), (at::IntArrayRef{2, 10}));
  EXPECT_ANY_THROW(model->forward(torch::rand({2, 3, 32, 32})));
  options.resize = 64;
  options.channels = 1;
  model = built(options);
  EXPECT_EQ(model->forward(torch::rand({2, 1, 28, 28})).sizes(), (at::IntArrayRef{2, 10}));
  options.resize = 32;
  EXPECT_THROW(alexnet_layers(options), InputError);
}

TEST(AlexNetTest, LearnsToTellTwoPatterns) {
  AlexNetOptions options;
  options.hidden = 32;
  options.resize = 64;
  options.channels = 1;
  options.classes = 2;
  options.dropout = 0;
  const auto model = built(options);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-4));
  torch::manual_seed(0);
  const at::Tensor labels = torch::arange(8) % 2;
  at::Tensor images = torch::rand({8, 1, 28, 28}) * 0.5;
  images.index_put_({labels.eq(1), 0, torch::indexing::Slice(0, 14)}, 1.0); // a bright upper half
  for (int step = 0; step < 15; ++step) {
    optimizer.zero_grad();
    label_loss({model->forward(images)}, {labels}).backward();
    optimizer.step();
  }
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(model->forward(images).argmax(1).eq(labels).sum().item<int64_t>(), 8);
}

TEST(AlexNetTest, TheLossOfHalfLogitsIsNotRounded) {
  const at::Tensor logits = (torch::randn({8, 10}) + 10).to(torch::kBFloat16), labels = torch::arange(8);
  const double expected = at::cross_entropy_loss(logits.to(torch::kDouble), labels).item<double>();
  EXPECT_NEAR(label_loss({logits}, {labels}).item<double>(), expected, 1e-5 * expected);
}

} // namespace
} // namespace trireme::models
