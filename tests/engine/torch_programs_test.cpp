// What programs written for torch do with a model beside its engine: several models, gradients of their own,
// torch::load(), unfreezing.
#include "two_layers.h"

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <sstream>

namespace trireme::engine {
namespace torch_programs {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;

at::Tensor real_loss(TwoLayers& judge, const at::Tensor& real, const at::Tensor& made) {
  return (judge->forward(real) - 1).square().mean() + judge->forward(made).square().mean();
}

std::pair<Weights, Weights> gan_in_torch(int ranks) {
  TwoLayers maker(3, 5, 1), judge(5, 1, 2);
  torch::optim::Adam of_maker(maker->parameters(), torch::optim::AdamOptions(0.01));
  torch::optim::Adam of_judge(judge->parameters(), torch::optim::AdamOptions(0.02));
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor noise = rows_of_all(step, ranks, 3), real = rows_of_all(step, ranks, 5);
    judge->zero_grad();
    real_loss(judge, real, maker->forward(noise).detach()).backward();
    of_judge.step();
    maker->zero_grad();
    (judge->forward(maker->forward(noise)) - 1).square().mean().backward();
    of_maker.step();
  }
  return {weights_of(*maker), weights_of(*judge)};
}

// The second loss goes through both models.
TEST(TorchProgramsTest, TwoEnginesOfAGanEqualTorch) {
  on_ranks(2, [](comm::World& world) {
    const auto expected = gan_in_torch(world.size());
    for (const int stage : {0, 1, 3}) {
      TwoLayers maker(3, 5, 1), judge(5, 1, 2);
      at::Tensor noise, real;
      InitializeOptions of_maker = options_for(maker, stage);
      of_maker.optimizer = std::make_shared<torch::optim::Adam>(maker->parameters(), torch::optim::AdamOptions(0.01));
      of_maker.loss = [&](const data::Batch&) { return (judge->forward(maker->forward(noise)) - 1).square().mean(); };
      InitializeOptions of_judge = options_for(judge, stage);
      of_judge.optimizer = std::make_shared<torch::optim::Adam>(judge->parameters(), torch::optim::AdamOptions(0.02));
      of_judge.loss = [&](const data::Batch&) { return real_loss(judge, real, maker->forward(noise).detach()); };
      const auto makes = initialize(world, of_maker).engine;
      const auto judges = initialize(world, of_judge).engine;
      for (int step = 0; step < kSteps; ++step) {
        noise = rows_of(step, world.rank(), 3);
        real = rows_of(step, world.rank(), 5);
        judges->train_batch([&] { return batch_of(real); });
        makes->train_batch([&] { return batch_of(noise); });
      }
      expect_weights(whole_weights(*makes, maker), expected.first, concat("maker, stage ", stage));
      expect_weights(whole_weights(*judges, judge), expected.second, concat("judge, stage ", stage));
    }
  });
}

// Before initialize(), between micro-batches, and between backward() and step().
TEST(TorchProgramsTest, GradientsOfOtherBackwardsAreNotTheEngines) {
  on_ranks(2, [](comm::World& world) {
    for (const int stage : {0, 2, 3}) {
      Weights weights[2];
      for (const bool disturbed : {false, true}) {
        TwoLayers model(3, 2, 1);
        const auto outside = [&](int step) {
          if (disturbed && (step % 2 == 0 || world.rank() == 0 || stage == 3)) {
            const at::Tensor in = rows_of(step, 7, 3).requires_grad_(true);
            (100 * model->forward(in).sum()).backward();
            EXPECT_GT(in.grad().abs().sum().item<double>(), 0);
          }
        };
        outside(0);
        InitializeOptions options = options_for(model, stage, 2);
        options.optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.1));
        const auto engine = initialize(world, options).engine;
        for (int step = 0; step < kSteps; ++step) {
          outside(step);
          engine->backward(engine->forward(batch_of(rows_of(step, world.rank(), 3))));
          outside(step);
          engine->step();
        }
        weights[disturbed] = whole_weights(*engine, model);
      }
      expect_weights(weights[1], weights[0], concat("stage ", stage));
    }
  });
}

TEST(TorchProgramsTest, GradOfAParameterIsThatOfTorch) {
  on_ranks(1, [](comm::World& world) {
    TwoLayers model(3, 2, 1), alone(3, 2, 1);
    const auto engine = initialize(world, options_for(model, 0)).engine;
    const auto grad = [](TwoLayers& of) {
      return torch::autograd::grad({of->forward(rows_of(0, 0, 3)).sum()}, {of->first->weight})[0];
    };
    EXPECT_TRUE(grad(model).equal(grad(alone)));
  });
}

TEST(TorchProgramsTest, AStepWithoutTheEnginesBackwardIsRefused) {
  on_ranks(1, [](comm::World& world) {
    TwoLayers model(3, 2, 1);
    const auto engine = initialize(world, options_for(model, 0, 2)).engine;
    engine->forward(batch_of(rows_of(0, 0, 3))).backward();
    EXPECT_THAT(refusal([&] { engine->step(); }),
                AllOf(HasSubstr("step() of step 1 without backward()"), HasSubstr("loss.backward()")));
    EXPECT_EQ(engine->global_steps(), 0);
  });
}

TEST(TorchProgramsTest, ZeroGradBeginsTheStepAnew) {
  on_ranks(2, [](comm::World& world) {
    for (const int stage : {0, 2}) {
      Weights weights[2];
      for (const bool dropped : {false, true}) {
        TwoLayers model(3, 2, 1);
        InitializeOptions options = options_for(model, stage, 2);
        options.optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.1));
        const auto engine = initialize(world, options).engine;
        const auto micro_batch = [&](int step, bool zeroes) {
          const at::Tensor loss = engine->forward(batch_of(rows_of(step, world.rank(), 3)));
          if (zeroes) {
            engine->zero_grad(); // where a torch loop has it
          }
          engine->backward(loss);
          engine->step();
        };
        if (dropped) {
          micro_batch(4, false);
          engine->zero_grad();
          engine->backward(engine->forward(batch_of(rows_of(5, world.rank(), 3))));
          engine->zero_grad();
        }
        for (int i = 0; i < 4; ++i) {
          micro_batch(i, dropped && i % 2 == 0);
        }
        EXPECT_EQ(engine->global_steps(), 2);
        weights[dropped] = whole_weights(*engine, model);
      }
      expect_weights(weights[1], weights[0], concat("stage ", stage));
    }
  });
}

TEST(TorchProgramsTest, AModelThatIsLoadedOrConvertedAfterwardsIsNamed) {
  for (const int stage : {0, 3}) {
    for (const bool loads : {true, false}) {
      on_ranks(2, [&](comm::World& world) {
        TwoLayers model(3, 2, 1);
        const auto engine = initialize(world, options_for(model, stage)).engine;
        const auto train = [&] { engine->train_batch([&] { return batch_of(rows_of(0, world.rank(), 3)); }); };
        train();
        {
          const auto whole = engine->gather_parameters(model->parameters());
          if (loads) {
            std::stringstream saved;
            torch::save(TwoLayers(3, 2, 9), saved);
            torch::load(model, saved);
          } else {
            model->to(torch::kBFloat16);
          }
        }
        EXPECT_THAT(refusal(train), AllOf(HasSubstr("is no longer in the engine's memory"), HasSubstr("torch::load()"),
                                          HasSubstr("before initialize()")));
      });
    }
  }
}

TEST(TorchProgramsTest, AParameterThatIsUnfrozenAfterwardsIsNamed) {
  on_ranks(1, [](comm::World& world) {
    TwoLayers model(3, 2, 1);
    model->first->weight.requires_grad_(false);
    const auto engine = initialize(world, options_for(model, 0)).engine;
    const auto train = [&] { engine->train_batch([&] { return batch_of(rows_of(0, 0, 3)); }); };
    train();
    model->first->weight.requires_grad_(true);
    EXPECT_THAT(refusal(train), AllOf(HasSubstr("parameter \"first.weight\" was frozen"),
                                      HasSubstr("Unfreeze it before initialize()")));
    model->first->weight.requires_grad_(false);
    train();
  });
}

TEST(TorchProgramsTest, AModelInDoubleIsRefusedAtTheStart) {
  on_ranks(1, [](comm::World& world) {
    TwoLayers model(3, 2, 1);
    model->to(torch::kDouble);
    EXPECT_THAT(refusal([&] { initialize(world, options_for(model, 0)); }),
                AllOf(HasSubstr("\"first.weight\" is of type Double"), HasSubstr("model->to(torch::kFloat32)")));
  });
}

// A language model's targets in one row have several for each sample.
TEST(TorchProgramsTest, AnEvaluationTakesTensorsWithSeveralRowsForEachSample) {
  on_ranks(1, [](comm::World& world) {
    TwoLayers model(3, 2, 1);
    InitializeOptions options = options_for(model, 0);
    options.loss = [model](const data::Batch& batch) mutable {
      return at::mse_loss(model->forward(batch.input()).reshape({-1}), batch.target());
    };
    const auto engine = initialize(world, options).engine;
    const at::Tensor x = rows_of(0, 0, 3), targets = torch::arange(2.0 * kRows);
    const torch::NoGradGuard no_grad;
    const auto expected = [&](int64_t rows) {
      return at::mse_loss(model->forward(x.narrow(0, 0, rows)).reshape({-1}), targets.narrow(0, 0, 2 * rows))
          .item<double>();
    };
    EXPECT_NEAR(engine->eval_batch({{x}, {targets}, kRows}).item<double>(), expected(kRows), 1e-6);
    EXPECT_NEAR(engine->eval_batch({{x}, {targets}, kRows - 1}).item<double>(), expected(kRows - 1), 1e-6);
    EXPECT_THAT(refusal([&] { engine->eval_batch({{x}, {targets}, 0}); }), HasSubstr("set Batch::samples"));
  });
}

TEST(TorchProgramsTest, ASecondBackwardBeforeStepIsRefused) {
  for (const int stage : {0, 1, 2, 3}) {
    on_ranks(2, [&](comm::World& world) {
      TwoLayers model(3, 2, 1);
      const auto engine = initialize(world, options_for(model, stage)).engine;
      const data::Batch batch = batch_of(rows_of(0, world.rank(), 3));
      engine->backward(engine->forward(batch));
      EXPECT_THAT(refusal([&] { engine->backward(engine->forward(batch)); }),
                  AllOf(HasSubstr("a second backward() of one micro-batch in step 1"), HasSubstr("Add the losses")));
      engine->step();
      engine->backward(engine->forward(batch));
      engine->step();
      EXPECT_EQ(engine->global_steps(), 2);
    });
  }
}

// Not only the next step: what is saved and evaluated would be other values than those that are trained.
TEST(TorchProgramsTest, AModelThatWasLoadedIsNotSavedOrEvaluated) {
  on_ranks(1, [](comm::World& world) {
    TwoLayers model(3, 2, 1);
    const auto engine = initialize(world, options_for(model, 0)).engine;
    std::stringstream saved;
    torch::save(TwoLayers(3, 2, 9), saved);
    torch::load(model, saved);
    const auto told = AllOf(HasSubstr("is no longer in the engine's memory"), HasSubstr("before initialize()"));
    EXPECT_THAT(refusal([&] { engine->save_checkpoint("nowhere"); }), told);
    EXPECT_THAT(refusal([&] { engine->gather_model(); }), told);
    EXPECT_THAT(refusal([&] { engine->eval_batch(batch_of(rows_of(0, 0, 3))); }), told);
  });
}

} // namespace
} // namespace torch_programs
} // namespace trireme::engine
