// Parameters whose requires_grad changes after DataParallel was made, and tensors that it is given by name.
#include "toy.h"

#include <trireme/base/error.h>
#include <trireme/shards/data_parallel/data_parallel.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/batchnorm.h>

#include <memory>

namespace trireme::parallel {
namespace {

using test::error_of;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kRows = 12;

at::Tensor rows_of(const comm::World* world, int64_t step) {
  const at::Tensor batch = toy_batch(step, kRows);
  const int64_t mine = world == nullptr ? kRows : kRows / world->size();
  return world == nullptr ? batch : batch.slice(0, world->rank() * mine, (world->rank() + 1) * mine);
}

void set_requires_grad(torch::nn::Module& module, bool on) {
  for (at::Tensor& parameter : module.parameters()) {
    parameter.set_requires_grad(on);
  }
}

// Trains with momentum, so that a gradient of zero is not the same as none. `change` is called before each step.
Toy train(const comm::World* world, bool first_is_frozen, const std::function<void(ToyImpl&, int)>& change) {
  Toy model(world == nullptr ? 1 : 1 + world->rank());
  set_requires_grad(*model->first, !first_is_frozen);
  std::unique_ptr<DataParallel> parallel;
  if (world != nullptr) {
    parallel = std::make_unique<DataParallel>(*model, world->group(), small_buckets());
  }
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < 12; ++step) {
    change(*model, step);
    optimizer.zero_grad();
    model->loss(rows_of(world, step)).backward();
    optimizer.step();
  }
  return model;
}

using Change = std::function<void(ToyImpl&, int)>;

void expect_as_alone(int ranks, bool first_is_frozen, const Change& change) {
  on_ranks(ranks, [&](comm::World& world) {
    Toy model = train(&world, first_is_frozen, change);
    Toy alone = train(nullptr, first_is_frozen, change);
    EXPECT_LT(largest_difference(*model, *alone), 1e-5);
  });
}

class LateParametersTest : public testing::TestWithParam<int> {};

TEST_P(LateParametersTest, WhatIsUnfrozenLaterIsAveraged) {
  expect_as_alone(GetParam(), true, [](ToyImpl& model, int step) {
    if (step == 5) {
      set_requires_grad(*model.first, true);
      model.frozen.set_requires_grad(true);
    }
  });
}

// Of the parameters that were trained at construction none has a gradient then, so that none of them begins the
// reduction.
TEST_P(LateParametersTest, AlsoWhereNothingElseIsTrained) {
  expect_as_alone(GetParam(), true, [](ToyImpl& model, int step) {
    if (step == 5) {
      set_requires_grad(model, false);
      set_requires_grad(*model.first, true);
    }
  });
}

TEST_P(LateParametersTest, WhatIsFrozenLaterStaysAsItIs) {
  expect_as_alone(GetParam(), false, [](ToyImpl& model, int step) { set_requires_grad(*model.first, step % 2 == 0); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LateParametersTest, testing::Values(1, 2, 3));

TEST(LateParametersJoinTest, ARankWithoutDataHasTheWeightsOfThose) {
  on_ranks(2, [](comm::World& world) {
    Toy model(1);
    set_requires_grad(*model->first, false);
    DataParallel parallel(*model, world.group(), small_buckets());
    set_requires_grad(*model->first, true);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05));
    for (int step = 0; step < 2 + world.rank(); ++step) {
      parallel.zero_grad();
      model->loss(toy_batch(step * 10 + world.rank(), 3)).backward();
      optimizer.step();
    }
    parallel.join();
    at::Tensor mine = model->first->weight.detach().clone();
    world.group().broadcast(mine, 0).wait();
    EXPECT_TRUE(mine.equal(model->first->weight));
  });
}

TEST(LateParametersErrorTest, ALayerThatIsReplacedIsNamed) {
  on_ranks(2, [](comm::World& world) {
    Toy model(1);
    const DataParallel parallel(*model, world.group(), small_buckets());
    model->last = model->replace_module("last", torch::nn::Linear(9, 1));
    EXPECT_THAT(error_of([&] { model->loss(toy_batch(0, 3)).backward(); }),
                AllOf(HasSubstr("parameter last.weight has a gradient that is not exchanged"),
                      HasSubstr("it was not in the model when DataParallel was made"),
                      HasSubstr("again after a layer is added")));
  });
}

// The old one's end must not take the hooks of the new one.
TEST(LateParametersErrorTest, DataParallelMayBeMadeAnew) {
  on_ranks(2, [](comm::World& world) {
    Toy model(1);
    set_requires_grad(*model->first, false);
    auto parallel = std::make_unique<DataParallel>(*model, world.group(), small_buckets());
    set_requires_grad(*model->first, true);
    parallel = std::make_unique<DataParallel>(*model, world.group(), small_buckets());
    model->loss(rows_of(&world, 0)).backward();
    Toy alone(1);
    alone->loss(rows_of(nullptr, 0)).backward();
    EXPECT_TRUE(model->first->weight.grad().allclose(alone->first->weight.grad(), 1e-5, 1e-6));
    EXPECT_TRUE(model->last->weight.grad().allclose(alone->last->weight.grad(), 1e-5, 1e-6));
  });
}

// A model within another one, both in a DataParallel: a GAN whose judge is frozen while the maker is trained.
TEST(LateParametersErrorTest, AFrozenModelKeepsTheHooksOfItsOwnDataParallel) {
  on_ranks(2, [](comm::World& world) {
    Toy model(1);
    DataParallel own(*model, world.group(), small_buckets());
    {
      set_requires_grad(*model->first, false);
      const DataParallel other(*model, world.group(), small_buckets());
      set_requires_grad(*model->first, true);
    }
    const auto other_takes_over = std::make_unique<DataParallel>(*model->last, world.group(), small_buckets());
    own.zero_grad();
    model->loss(rows_of(&world, 0)).backward();
    Toy alone(1);
    alone->loss(rows_of(nullptr, 0)).backward();
    EXPECT_TRUE(model->first->weight.grad().allclose(alone->first->weight.grad(), 1e-5, 1e-6));
  });
}

TEST(FirstValuesTest, WeightsThatRanksDrawAfterwardsAreNamed) {
  on_ranks(2, [](comm::World& world) {
    Toy model(1);
    DataParallel parallel(*model, world.group(), small_buckets());
    const auto draw = [&](int64_t seed) {
      const torch::NoGradGuard no_grad;
      torch::manual_seed(static_cast<uint64_t>(seed));
      model->last->weight.normal_();
    };
    draw(1 + world.rank());
    EXPECT_THAT(error_of([&] { model->loss(rows_of(&world, 0)).backward(); }),
                AllOf(HasSubstr("parameter \"last.weight\" differs between ranks in the first step"),
                      HasSubstr("before DataParallel is made")));
  });
  on_ranks(2, [](comm::World& world) {
    Toy model(1);
    DataParallel parallel(*model, world.group(), small_buckets());
    const torch::NoGradGuard no_grad;
    model->last->weight.fill_(0.5); // the same on both
    const torch::AutoGradMode grad(true);
    model->loss(rows_of(&world, 0)).backward();
  });
}

// A TorchScript module, and a learnable tensor beside it.
TEST(NamedTensorsTest, TrainAsOneProcess) {
  on_ranks(2, [](comm::World& ranks) {
    const auto train = [](const comm::World* world) {
      torch::jit::Module script("toy");
      const double start = world == nullptr ? 1 : 1 + world->rank(); // rank 0's replaces the others
      script.register_parameter("weight", torch::full({6}, 0.1 * start, torch::requires_grad()), false);
      script.register_parameter("later", torch::full({1}, 0.2 * start), false);
      script.register_buffer("steps", torch::full({1}, start));
      script.define("def forward(self, x):\n  return torch.mv(x, self.weight) + self.later\n");
      at::Tensor log_sigma = torch::full({}, 0.3 * start, torch::requires_grad());
      std::vector<std::pair<std::string, at::Tensor>> tensors;
      std::vector<std::pair<std::string, at::Tensor>> buffers;
      for (const auto& item : script.named_parameters()) {
        tensors.emplace_back(item.name, item.value);
      }
      for (const auto& item : script.named_buffers()) {
        buffers.emplace_back(item.name, item.value);
      }
      tensors.emplace_back("log_sigma", log_sigma);
      std::unique_ptr<DataParallel> parallel;
      if (world != nullptr) {
        parallel = std::make_unique<DataParallel>(tensors, world->group(), small_buckets(), buffers);
        EXPECT_EQ(buffers[0].second.item<double>(), 1);
      }
      std::vector<at::Tensor> stepped;
      for (const auto& [name, tensor] : tensors) {
        stepped.push_back(tensor);
      }
      torch::optim::SGD optimizer(stepped, torch::optim::SGDOptions(0.05).momentum(0.9));
      for (int step = 0; step < 8; ++step) {
        script.attr("later").toTensor().set_requires_grad(step >= 4);
        optimizer.zero_grad();
        const at::Tensor x = rows_of(world, step);
        const at::Tensor difference = script.forward({x}).toTensor() - x.sum(1).sin();
        (difference.pow(2) * torch::exp(-log_sigma) + log_sigma).mean().backward();
        buffers[0].second.fill_(step + start);
        optimizer.step();
      }
      return torch::cat({stepped[0].flatten().detach(), stepped[1].flatten().detach(), stepped[2].flatten().detach()});
    };
    EXPECT_TRUE(train(&ranks).allclose(train(nullptr), 1e-5, 1e-6));
  });
}

TEST(NamedTensorsTest, WhatCannotBeTrainedIsNamed) {
  const at::Tensor leaf = torch::ones({2}, torch::requires_grad());
  EXPECT_THAT(error_of([&] { DataParallel({{"a", leaf}, {"b", leaf * 2}}, comm::Group()); }),
              HasSubstr("\"b\" is the result of a computation"));
  EXPECT_THAT(error_of([&] { DataParallel({{"a", leaf}, {"b", at::Tensor()}}, comm::Group()); }),
              HasSubstr("\"b\" is undefined"));
}

} // namespace
} // namespace trireme::parallel
