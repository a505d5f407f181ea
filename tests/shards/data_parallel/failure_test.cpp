// A backward that throws must not leave the ranks apart, nor part of it in a later step.
#include "toy.h"

#include <trireme/base/error.h>
#include <trireme/memory/recompute/recompute.h>
#include <trireme/shards/data_parallel/data_parallel.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

namespace trireme::parallel {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

/// Where backward throws: before any gradient, between two, or nowhere.
enum class Throw { never, early, late };

struct Loop {
  torch::nn::Linear lower{6, 9};
  torch::nn::Linear upper{9, 1};
  torch::nn::Module model;
  std::unique_ptr<DataParallel> parallel;
  std::unique_ptr<torch::optim::SGD> optimizer;
  int rank;

  explicit Loop(comm::World& world) : rank(world.rank()) {
    torch::manual_seed(1);
    lower->reset_parameters();
    upper->reset_parameters();
    model.register_module("lower", lower);
    model.register_module("upper", upper);
    DataParallelOptions options;
    options.bucket_bytes = 100;
    options.first_bucket_bytes = 100;
    parallel = std::make_unique<DataParallel>(model, world.group(), options);
    optimizer = std::make_unique<torch::optim::SGD>(model.parameters(), torch::optim::SGDOptions(0.05));
  }
  void backward(int step, Throw where, bool recomputed = false) {
    parallel->zero_grad();
    const auto trap = [](const at::Tensor& x) {
      x.register_hook([](const at::Tensor&) { throw Error("trap", "backward went through it"); });
    };
    const at::Tensor x = toy_batch(step * 10 + rank, 4);
    at::Tensor h = recomputed
                       ? recompute::call([this](const at::Tensor& y) { return torch::tanh(lower->forward(y)); }, x)
                       : torch::tanh(lower->forward(x));
    if (where == Throw::late) {
      trap(h);
    }
    const at::Tensor y =
        recomputed ? recompute::call([this](const at::Tensor& z) { return upper->forward(z); }, h) : upper->forward(h);
    if (where == Throw::early) {
      trap(y);
    }
    y.square().mean().backward();
  }
  void step(int number) {
    backward(number, Throw::never);
    optimizer->step();
  }
};

TEST(DataParallelFailureTest, ARankAloneGoesOn) {
  on_ranks(1, [](comm::World& world) {
    for (const bool recomputed : {false, true}) {
      Loop whole(world);
      Loop failing(world);
      for (int step = 0; step < 5; ++step) {
        if (step % 2 == 1) {
          EXPECT_THROW(failing.backward(step + 50, step == 1 ? Throw::early : Throw::late, recomputed), Error);
        }
        whole.step(step);
        failing.step(step);
      }
      EXPECT_EQ(largest_difference(failing.model, whole.model), 0);
    }
  });
}

TEST(DataParallelFailureTest, AmongSeveralTheGroupEndsAndNobodyHasAPartOfTheGradients) {
  for (const bool recomputed : {false, true}) {
    EXPECT_THAT(run_ranks(3,
                          [&](comm::World& world) {
                            Loop loop(world);
                            loop.step(0);
                            const std::string error = test::error_of(
                                [&] { loop.backward(1, world.rank() == 0 ? Throw::late : Throw::never, recomputed); });
                            if (world.rank() == 0) {
                              EXPECT_THAT(error, HasSubstr("backward went through it"));
                              EXPECT_THAT(test::error_of([&] { loop.backward(1, Throw::never); }),
                                          HasSubstr("after one that failed"));
                            } else {
                              EXPECT_THAT(error, AllOf(HasSubstr("rank 0"), HasSubstr("its backward failed")));
                            }
                          }),
                IsEmpty())
        << recomputed;
  }
}

} // namespace
} // namespace trireme::parallel
