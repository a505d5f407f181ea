#include "toy.h"

#include <trireme/base/error.h>
#include <trireme/shards/data_parallel/gradient_sync.h>
#include <trireme/shards/data_parallel/reducer.h>
#include <trireme/shards/data_parallel/replicas.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <algorithm>

namespace trireme::parallel {
namespace {

using test::on_ranks;
using test::run_ranks;

std::vector<bucket::FlatParameters*> pointers(const FlatBuffers& buffers) {
  std::vector<bucket::FlatParameters*> out;
  for (const auto& buffer : buffers) {
    out.push_back(buffer.get());
  }
  return out;
}

class ReducerTest : public testing::TestWithParam<int> {};

// The same local gradients, summed bucket by bucket without any hook, give the same bits.
TEST_P(ReducerTest, SumsAreBitEqualToPlainAllReduces) {
  on_ranks(GetParam(), [](comm::World& world) {
    const comm::Group& group = world.group();
    Toy model(1);
    Toy twin(1);
    const auto flat = flatten(trainable_parameters(*model), group, small_buckets());
    AllReduceSync sync(group, small_buckets());
    Reducer reducer(pointers(flat), sync);
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = toy_batch(step * 10 + world.rank(), 5);
      flat[0]->clear_grads();
      model->loss(x).backward();
      reducer.finish();
      twin->zero_grad();
      twin->loss(x).backward();
      // Lay the twin's gradients out in the same way and reduce them plainly.
      const auto& layout = flat[0]->layout();
      at::Tensor plain = torch::zeros({layout.numel()});
      const auto twins = trainable_parameters(*twin);
      for (int64_t i = 0; i < flat[0]->count(); ++i) {
        const auto& slot = layout.slot_of(i);
        if (twins[i].second.grad().defined()) {
          plain.slice(0, slot.begin, slot.end).copy_(twins[i].second.grad().flatten());
        }
      }
      ASSERT_GT(layout.buckets().size(), 3u);
      for (size_t b = 0; b < layout.buckets().size(); ++b) {
        const auto& bucket = layout.buckets()[b];
        at::Tensor part = plain.slice(0, bucket.begin, bucket.end).clone();
        group.all_reduce(part).wait();
        EXPECT_TRUE(part.equal(flat[0]->flat_grad().slice(0, bucket.begin, bucket.end))) << "bucket " << b;
      }
    }
  });
}

// Two types of parameters, so two buffers: a is fp32 in part and b is bf16 in part.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    torch::manual_seed(1);
    a = register_module("a", torch::nn::Linear(4, 8));
    b = register_module("b", torch::nn::Linear(4, 6));
    c = register_module("c", torch::nn::Linear(4, 3));
    b->to(torch::kBFloat16);
    for (at::Tensor& parameter : parameters()) {
      torch::NoGradGuard no_grad;
      parameter.zero_();
    }
  }
  at::Tensor branch(const std::string& name, const at::Tensor& x) {
    return name == "a"   ? a->forward(x).sum()
           : name == "b" ? b->forward(x.to(torch::kBFloat16)).sum().to(torch::kFloat32)
                         : c->forward(x).sum();
  }
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
};
TORCH_MODULE(Mixed);

// Gradients arrive in another order on every rank, and some not at all. They are small whole numbers, exact in either
// type.
TEST_P(ReducerTest, BucketsOfAllBuffersStartInOneOrderWhateverOrderGradientsArriveIn) {
  on_ranks(GetParam(), [](comm::World& world) {
    const std::vector<std::vector<std::string>> branches = {{"a", "b", "c"}, {"c", "b", "a"}, {"b"}, {"c", "a"}};
    Mixed model;
    const auto flat = flatten(trainable_parameters(*model), world.group(), small_buckets());
    ASSERT_EQ(flat.size(), 2u);
    AllReduceSync sync(world.group(), small_buckets());
    Reducer reducer(pointers(flat), sync);
    const auto before = flat[0]->layout().order();
    for (int step = 0; step < 4; ++step) {
      const auto branches_of = [&](int rank) { return branches[static_cast<size_t>(rank + step) % branches.size()]; };
      for (const auto& buffer : flat) {
        buffer->clear_grads();
      }
      at::Tensor loss = torch::zeros({});
      for (const std::string& name : branches_of(world.rank())) {
        loss = loss + model->branch(name, torch::full({2, 4}, 1.0 + world.rank()));
      }
      loss.backward();
      reducer.finish();
      for (const auto& item : model->named_parameters()) {
        double expected = 0;
        for (int rank = 0; rank < world.size(); ++rank) {
          const auto used = branches_of(rank);
          const bool is_used = std::find(used.begin(), used.end(), item.key().substr(0, 1)) != used.end();
          expected += !is_used ? 0 : item.key().substr(2) == "bias" ? 2 : 2 * (1 + rank);
        }
        EXPECT_TRUE(item.value().grad().eq(expected).all().item<bool>()) << item.key() << ", step " << step;
      }
    }
    EXPECT_EQ(flat[0]->layout().order(), before) << "nothing is learned";
  });
}

TEST_P(ReducerTest, PreAndPostScalingGiveTheMean) {
  on_ranks(GetParam(), [](comm::World& world) {
    for (int kind = 0; kind < 3; ++kind) {
      DataParallelOptions options = small_buckets();
      options.prescale_gradients = kind == 1;
      options.gradient_predivide_factor = kind == 2 ? 2.0 : 1.0;
      Toy model(1);
      const auto flat = flatten(trainable_parameters(*model), world.group(), options);
      AllReduceSync sync(world.group(), options);
      Reducer reducer(pointers(flat), sync);
      model->loss(toy_batch(3, 4)).backward(); // the same on every rank: the mean is the local gradient
      const at::Tensor local = [&] {
        Toy twin(1);
        twin->loss(toy_batch(3, 4)).backward();
        return twin->first->weight.grad().clone();
      }();
      reducer.finish();
      const double scale = sync.scale();
      EXPECT_TRUE(torch::allclose(model->first->weight.grad() * scale, local, 1e-6, 1e-9)) << "kind " << kind;
    }
  });
}

TEST(ReducerErrorTest, SparseGradientsAreRefusedByName) {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(4, 3).sparse(true));
  const comm::Group alone;
  const auto flat = flatten(trainable_parameters(*embedding), alone, {});
  AllReduceSync sync(alone, {});
  Reducer reducer(pointers(flat), sync);
  try {
    embedding->forward(torch::tensor({1, 2})).sum().backward();
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("parameter weight has a sparse gradient"));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReducerTest, testing::Values(1, 2, 3, 4));

} // namespace
} // namespace trireme::parallel
