#include <trireme/base/error.h>
#include <trireme/models/cnn.h>

#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

namespace trireme::models {
namespace {

TEST(CnnTest, MapsImagesToLogits) {
  CnnOptions options;
  options.side = 8;
  options.channels = 3;
  options.classes = 7;
  Cnn model(options);
  EXPECT_EQ(model->forward(torch::rand({5, 3, 8, 8})).sizes(), (at::IntArrayRef{5, 7}));
  options.side = 10;
  EXPECT_THROW(Cnn{options}, InputError);
}

TEST(CnnTest, LearnsToTellTwoPatterns) {
  CnnOptions options;
  options.side = 8;
  options.width = 4;
  options.classes = 2;
  Cnn model(options);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.01));
  torch::manual_seed(0);
  const at::Tensor labels = torch::arange(32) % 2;
  at::Tensor images = torch::rand({32, 1, 8, 8}) * 0.5;
  images.index_put_({labels.eq(1), 0, 0}, 1.0); // a bright top row
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    model->loss(images, labels).backward();
    optimizer.step();
  }
  EXPECT_EQ(model->forward(images).argmax(1).eq(labels).sum().item<int64_t>(), 32);
}

} // namespace
} // namespace trireme::models
