// Operators that write a weight's gradient into its flat buffer, beside autograd's own path on a twin: the same bits.
#include "toy.h"

#include <trireme/fused/fused.h>
#include <trireme/fused/gradient_home.h>
#include <trireme/fused/int8.h>
#include <trireme/fused/linear_cross_entropy.h>
#include <trireme/memory/recompute/recompute.h>
#include <trireme/shards/data_parallel/autograd_hooks.h>
#include <trireme/shards/data_parallel/gradient_sync.h>
#include <trireme/shards/data_parallel/reducer.h>
#include <trireme/shards/data_parallel/replicas.h>

#include <tests/support/run_ranks.h>

#include <torch/autograd.h>

#include <gmock/gmock.h>

namespace trireme::parallel {
namespace {

constexpr int64_t kTokens = 24, kVocabulary = 40, kHidden = 16;

enum class Head { logits, chunks };

// A block with a tied embedding: `table` is used first and last.
struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(Head head_form) : head(head_form) {
    torch::manual_seed(3);
    unused = register_parameter("unused", torch::randn({3}));
    table = register_parameter("table", torch::randn({kVocabulary, kHidden}));
    scale = register_parameter("scale", torch::rand({kHidden}));
    shift = register_parameter("shift", torch::randn({kHidden}));
    root = register_parameter("root", torch::rand({kHidden}));
    wide = register_parameter("wide", torch::randn({4 * kHidden, kHidden}));
    wide_bias = register_parameter("wide_bias", torch::randn({4 * kHidden}));
    narrow = register_parameter("narrow", torch::randn({kHidden, 4 * kHidden}));
    narrow_bias = register_parameter("narrow_bias", torch::randn({kHidden}));
  }
  at::Tensor block(const at::Tensor& x) const {
    at::Tensor h = fused::layer_norm(x, scale, shift, 1e-5);
    h = fused::linear(fused::bias_gelu(fused::linear(h, wide), wide_bias, fused::Gelu::tanh), narrow, narrow_bias);
    return fused::rms_norm(fused::add_bias(h, x, narrow_bias), root, 1e-5);
  }
  at::Tensor loss(const at::Tensor& ids) const {
    const at::Tensor targets = (ids * 7 + 1) % kVocabulary;
    const at::Tensor x = block(fused::embedding(table, ids)).flatten(0, 1);
    if (head == Head::logits) {
      return fused::cross_entropy(fused::linear(x, table), targets.flatten(), at::Reduction::Mean);
    }
    const fused::ClassColumns classes{targets.flatten(), at::ones({ids.numel()}, at::kBool), {}};
    return fused::linear_cross_entropy(x, table, classes, true, {.rows = 7});
  }
  Head head;
  at::Tensor table, scale, shift, root, wide, wide_bias, narrow, narrow_bias, unused;
};
TORCH_MODULE(Tied);

at::Tensor tied_batch(int64_t number) {
  return (torch::arange(kTokens) * (number + 3) % 11 + number).view({2, kTokens / 2}); // tokens repeat
}

// A model in a flat buffer with a reducer, and a twin without. Buckets are so small that a parameter which the reducer
// counts twice in one backward is an error.
struct Pair {
  explicit Pair(comm::World& world, Head head = Head::logits)
      : model(head),
        twin(head),
        flat(flatten(trainable_parameters(*model), world.group(), small_buckets())),
        sync(world.group(), small_buckets()),
        reducer({flat[0].get()}, sync) {
    for (const auto& item : model->named_parameters()) {
      auto accumulator = torch::autograd::impl::grad_accumulator(item.value());
      accumulator->add_post_hook(std::make_unique<AfterHook>([this, name = item.key()](bool has_gradient) {
        if (has_gradient) {
          through_autograd.push_back(name);
        }
      }));
      accumulators.push_back(std::move(accumulator));
    }
  }
  void backward(int64_t batch) {
    model->loss(tied_batch(batch)).backward();
    twin->loss(tied_batch(batch)).backward();
  }
  void expect_equal() {
    const auto twins = twin->named_parameters();
    for (const auto& item : model->named_parameters()) {
      const at::Tensor gradient = item.value().grad(), expected = twins[item.key()].grad();
      if (expected.defined()) {
        ASSERT_TRUE(gradient.defined()) << item.key();
        EXPECT_TRUE(gradient.equal(expected)) << item.key() << " differs by " << (gradient - expected).abs().max();
        EXPECT_EQ(gradient.storage().data(), flat[0]->flat_grad().storage().data()) << item.key();
      }
    }
  }

  Tied model, twin;
  std::vector<std::unique_ptr<bucket::FlatParameters>> flat;
  AllReduceSync sync;
  Reducer reducer;
  std::vector<std::string> through_autograd; // parameters whose gradient autograd received
  std::vector<decltype(torch::autograd::impl::grad_accumulator(at::Tensor()))> accumulators;
};

class GradientHomeTest : public testing::TestWithParam<Head> {};
INSTANTIATE_TEST_SUITE_P(All, GradientHomeTest, testing::Values(Head::logits, Head::chunks),
                         [](const auto& info) { return info.param == Head::logits ? "logits" : "chunks"; });

TEST_P(GradientHomeTest, OperatorsWriteEveryGradientInPlace) {
  test::on_ranks(1, [](comm::World& world) {
    Pair pair(world, GetParam());
    for (int64_t step = 0; step < 3; ++step) {
      pair.flat[0]->clear_grads();
      pair.flat[0]->flat_grad().fill_(std::nan("")); // old values must not count
      pair.twin->zero_grad();
      pair.backward(step);
      pair.expect_equal();
      // narrow_bias has two uses: the first writes, the second is added by autograd.
      EXPECT_THAT(pair.through_autograd, testing::ElementsAre("narrow_bias"));
      pair.through_autograd.clear();
      EXPECT_FALSE(pair.flat[0]->was_used(0)); // "unused"
      EXPECT_TRUE(pair.flat[0]->was_used(1));
    }
  });
}

TEST_P(GradientHomeTest, LaterMicroBatchesAddUpInTheSameOrder) {
  test::on_ranks(1, [](comm::World& world) {
    Pair pair(world, GetParam());
    pair.reducer.set_synchronising(false);
    pair.backward(0);
    pair.backward(1);
    pair.reducer.set_synchronising(true);
    pair.backward(2);
    pair.expect_equal();
  });
}

TEST_P(GradientHomeTest, RanksSumWhatOperatorsWrote) {
  test::on_ranks(2, [](comm::World& world) {
    Pair pair(world, GetParam());
    pair.model->loss(tied_batch(world.rank())).backward();
    pair.reducer.finish();
    pair.twin->loss(tied_batch(0)).backward();
    pair.twin->loss(tied_batch(1)).backward();
    const auto twins = pair.twin->named_parameters();
    for (const auto& item : pair.model->named_parameters()) {
      if (twins[item.key()].grad().defined()) {
        EXPECT_TRUE(item.value().grad().allclose(twins[item.key()].grad(), 1e-5, 1e-6)) << item.key();
      }
    }
  });
}

TEST_P(GradientHomeTest, AHookOfTheProgramSeesTheGradient) {
  test::on_ranks(1, [](comm::World& world) {
    Pair pair(world, GetParam());
    const auto halve = [](const at::Tensor& gradient) { return gradient * 0.5; };
    for (const at::Tensor& weight : {pair.model->table, pair.twin->table, pair.model->wide, pair.twin->wide}) {
      weight.register_hook(halve);
    }
    pair.backward(0);
    pair.expect_equal();
    EXPECT_THAT(pair.through_autograd, testing::IsSupersetOf({"table", "wide"}));
  });
}

TEST_P(GradientHomeTest, GradReturnsTheGradientAndLeavesTheBuffer) {
  test::on_ranks(1, [](comm::World& world) {
    Pair pair(world, GetParam());
    const auto ours = torch::autograd::grad({pair.model->loss(tied_batch(0))}, {pair.model->wide, pair.model->table});
    const auto theirs = torch::autograd::grad({pair.twin->loss(tied_batch(0))}, {pair.twin->wide, pair.twin->table});
    EXPECT_TRUE(ours[0].equal(theirs[0]));
    EXPECT_TRUE(ours[1].equal(theirs[1]));
    EXPECT_FALSE(pair.model->wide.grad().defined());
    EXPECT_EQ(pair.flat[0]->flat_grad().abs().max().item<float>(), 0);
  });
}

TEST_P(GradientHomeTest, OnlyTheLeavesOfABackwardGetGradients) {
  test::on_ranks(1, [](comm::World& world) {
    Pair pair(world, GetParam());
    pair.model->loss(tied_batch(0)).backward({}, std::nullopt, false, std::vector<at::Tensor>{pair.model->wide});
    pair.twin->loss(tied_batch(0)).backward({}, std::nullopt, false, std::vector<at::Tensor>{pair.twin->wide});
    EXPECT_TRUE(pair.model->wide.grad().equal(pair.twin->wide.grad()));
    EXPECT_FALSE(pair.flat[0]->was_used(1)); // "table"
  });
}

TEST_P(GradientHomeTest, NothingIsWrittenWhileGradientsAreDropped) {
  test::on_ranks(1, [](comm::World& world) {
    Pair pair(world, GetParam());
    pair.backward(0);
    const at::Tensor before = pair.flat[0]->flat_grad().clone();
    pair.reducer.set_accepting(false);
    pair.model->loss(tied_batch(1)).backward();
    pair.flat[0]->clear_grads();
    pair.model->loss(tied_batch(2)).backward();
    EXPECT_TRUE(before.equal(pair.flat[0]->flat_grad()));
    EXPECT_FALSE(pair.model->wide.grad().defined());
  });
}

TEST(GradientHomeTest, RecomputedLayersWriteTheirs) {
  test::on_ranks(1, [](comm::World& world) {
    Pair pair(world);
    const auto loss_of = [](const Tied& tied) {
      const at::Tensor x = at::embedding(tied->table, tied_batch(0));
      return recompute::call([&](const at::Tensor& y) { return tied->block(y); }, x).pow(2).mean();
    };
    loss_of(pair.model).backward();
    loss_of(pair.twin).backward();
    pair.expect_equal();
    EXPECT_THAT(pair.through_autograd, testing::UnorderedElementsAre("table", "narrow_bias"));
  });
}

// The penalty on a gradient needs the graph of backward, so autograd gets every gradient.
TEST(GradientHomeTest, GradientsOfGradientsTakeTheOrdinaryPath) {
  test::on_ranks(1, [](comm::World& world) {
    Pair pair(world);
    const auto penalty = [](const Tied& tied) {
      const at::Tensor x = torch::ones({5, kHidden}).set_requires_grad(true);
      const at::Tensor y = fused::linear(fused::linear(x, tied->wide, tied->wide_bias).sin(), tied->narrow);
      y.pow(2).sum().backward({}, std::nullopt, /*create_graph=*/true);
      return x.grad().pow(2).sum();
    };
    penalty(pair.model).backward();
    penalty(pair.twin).backward();
    for (const auto& [ours, theirs] :
         {std::pair(pair.model->wide, pair.twin->wide), std::pair(pair.model->narrow, pair.twin->narrow)}) {
      EXPECT_TRUE(ours.grad().equal(theirs.grad()));
    }
  });
}

} // namespace
} // namespace trireme::parallel
