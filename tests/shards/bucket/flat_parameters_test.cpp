#include <trireme/base/error.h>
#include <trireme/shards/bucket/flat_parameters.h>
#include <trireme/shards/bucket/flatten.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

namespace trireme::bucket {
namespace {

at::Tensor allocate(int64_t numel, at::ScalarType type) {
  return torch::empty({numel}, type);
}

at::Tensor allocate_on(int64_t numel, at::ScalarType type, at::Device) {
  return allocate(numel, type);
}

struct Model {
  torch::nn::Linear first{5, 7};
  torch::nn::Linear second{7, 3};

  NamedTensors parameters() {
    return {{"first.weight", first->weight},
            {"first.bias", first->bias},
            {"second.weight", second->weight},
            {"second.bias", second->bias}};
  }
  at::Tensor loss(const at::Tensor& x) { return second->forward(torch::tanh(first->forward(x))).pow(2).sum(); }
};

Model copy_of(Model& model) {
  torch::NoGradGuard no_grad;
  Model copy;
  const auto from = model.parameters();
  const auto to = copy.parameters();
  for (size_t i = 0; i < from.size(); ++i) {
    to[i].second.copy_(from[i].second);
  }
  return copy;
}

class FlatParametersTest : public testing::Test {
 protected:
  FlatParametersTest() {
    torch::manual_seed(3);
    options_.first_bucket_bytes = 16;
    options_.bucket_bytes = 200;
  }
  LayoutOptions options_;
};

TEST_F(FlatParametersTest, ParametersAreViewsWithTheirValues) {
  Model model;
  Model reference = copy_of(model);
  FlatParameters flat(model.parameters(), options_, allocate);
  for (int64_t i = 0; i < flat.count(); ++i) {
    EXPECT_TRUE(flat.parameter(i).equal(reference.parameters()[i].second)) << flat.name(i);
    const auto* base = flat.flat_data().const_data_ptr<float>();
    EXPECT_EQ(flat.parameter(i).const_data_ptr<float>(), base + flat.layout().slot_of(i).begin);
  }
  const at::Tensor x = torch::randn({4, 5});
  EXPECT_TRUE(model.loss(x).equal(reference.loss(x)));
}

TEST_F(FlatParametersTest, GradientsAccumulateIntoTheBufferBitForBit) {
  Model model;
  Model reference = copy_of(model);
  FlatParameters flat(model.parameters(), options_, allocate);
  for (int step = 0; step < 3; ++step) {
    flat.clear_grads();
    for (const auto& [name, parameter] : reference.parameters()) {
      parameter.mutable_grad().reset();
    }
    for (int micro = 0; micro < 3; ++micro) {
      const at::Tensor x = torch::randn({4, 5});
      model.loss(x).backward();
      reference.loss(x).backward();
      for (int64_t i = 0; i < flat.count(); ++i) {
        flat.attach_grad(i);
      }
    }
    for (int64_t i = 0; i < flat.count(); ++i) {
      const Slot& slot = flat.layout().slot_of(i);
      EXPECT_TRUE(
          flat.flat_grad().slice(0, slot.begin, slot.end).equal(reference.parameters()[i].second.grad().flatten()))
          << flat.name(i);
    }
  }
}

TEST_F(FlatParametersTest, TheOrderIsTheReverseOfTheList) {
  Model model;
  const FlatParameters flat(model.parameters(), options_, allocate);
  EXPECT_EQ(flat.layout().order(), (std::vector<int64_t>{3, 2, 1, 0}));
}

TEST_F(FlatParametersTest, EveryKindKnowsItsPlacesInTheModel) {
  const auto of = [](at::ScalarType type) { return torch::zeros({2}, type).requires_grad_(); };
  const FlatBuffers kinds =
      flatten({{"a", of(torch::kFloat)}, {"b", of(torch::kBFloat16)}, {"c", of(torch::kFloat)}}, options_, allocate_on);
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_EQ(kinds[0]->layout().tensors()[0].place, 0);
  EXPECT_EQ(kinds[0]->layout().tensors()[1].place, 2);
  EXPECT_EQ(kinds[1]->layout().tensors()[0].place, 1);
}

TEST_F(FlatParametersTest, KnowsWhatHasMovedAway) {
  const auto moved = [this](const std::function<void(Model&)>& change, bool shards) {
    Model model;
    FlatOptions flat_options;
    flat_options.shard_parameters = shards;
    flat_options.unit_of = [](const at::Tensor&) { return int64_t{0}; };
    FlatParameters flat(model.parameters(), options_, allocate, flat_options);
    for (int64_t b = 0; shards && b < std::ssize(flat.layout().buckets()); ++b) {
      flat.move_in(b);
    }
    EXPECT_EQ(flat.moved_away(), std::nullopt);
    const torch::NoGradGuard no_grad;
    change(model);
    return flat.moved_away();
  };
  for (const bool shards : {false, true}) {
    EXPECT_EQ(moved([](Model& m) { m.second->weight.set_data(torch::zeros({3, 7})); }, shards), 2) << shards;
    EXPECT_EQ(
        moved([](Model& m) { m.first->bias.set_data(m.first->weight.detach().flatten().slice(0, 0, 7)); }, shards), 1)
        << "within the buffer " << shards;
    EXPECT_EQ(moved([](Model& m) { m.first->weight.copy_(torch::ones({7, 5})); }, shards), std::nullopt) << shards;
  }
}

TEST_F(FlatParametersTest, BucketsTileTheGradients) {
  Model model;
  FlatParameters flat(model.parameters(), options_, allocate);
  ASSERT_GT(flat.layout().buckets().size(), 1u);
  EXPECT_EQ(flat.bucket_grad(0).const_data_ptr<float>(), flat.flat_grad().const_data_ptr<float>());
  EXPECT_EQ(flat.bucket_grad(0).numel(), flat.layout().buckets()[0].numel());
  EXPECT_EQ(flat.bucket_grad(1).numel(), flat.layout().buckets()[1].numel());
}

TEST_F(FlatParametersTest, RefusesMixedTypes) {
  EXPECT_THROW(FlatParameters({{"a", torch::zeros({2})}, {"b", torch::zeros({2}, torch::kDouble)}}, options_, allocate),
               Error);
  EXPECT_THROW(FlatParameters({}, options_, allocate), Error);
}

// A tied weight is one bucket: kept as a spare one, its whole gradient would stay where only a shard should.
TEST(FlattenTest, TheWholeGradientOfAParameterAloneDoesNotStay) {
  int64_t held = 0; // elements
  const AllocateOn counted = [&held](int64_t numel, at::ScalarType type, at::Device) {
    held += numel;
    const auto memory = std::make_shared<at::Tensor>(torch::empty({numel}, type));
    return torch::from_blob(
        memory->data_ptr(), {numel}, [&held, memory, numel](void*) { held -= numel; }, torch::dtype(type));
  };
  const at::Tensor tied = torch::zeros({1000}).requires_grad_();
  FlatOptions sharded;
  sharded.size = 2;
  sharded.shard_gradients = true;
  sharded.alone = [&](const at::Tensor& parameter) { return parameter.is_same(tied); };
  LayoutOptions layout;
  layout.shards = 2;
  const FlatBuffers buffers = flatten({{"tied", tied}}, layout, counted, sharded);
  const int64_t before = held;
  buffers.front()->bucket_grad(0);
  EXPECT_GE(held - before, 1000);
  buffers.front()->accumulate(0);
  EXPECT_LT(held - before, 600) << "the shard";
}

} // namespace
} // namespace trireme::bucket
