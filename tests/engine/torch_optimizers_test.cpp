// An engine with libtorch's optimizers and schedulers, and rates that a program decides.
#include "two_layers.h"

#include <trireme/base/file.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <filesystem>

namespace trireme::engine {
namespace torch_programs {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(TorchOptimizersTest, OnlyWhoAsksForItClipsATorchOptimizersGradients) {
  on_ranks(1, [](comm::World& world) {
    const auto run = [&](bool engine, std::optional<double> clipping) {
      TwoLayers model(3, 2, 1);
      const auto sgd = std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.001));
      if (!engine) {
        for (int step = 0; step < kSteps; ++step) {
          sgd->zero_grad();
          (1000 * model->forward(rows_of(step, 0, 3)).square().mean()).backward();
          sgd->step();
        }
        return weights_of(*model);
      }
      InitializeOptions options = options_for(model, 1);
      options.optimizer = sgd;
      options.config.gradient_clipping = clipping;
      options.loss = [&](const data::Batch& batch) { return 1000 * model->forward(batch.input()).square().mean(); };
      const auto made = initialize(world, options).engine;
      for (int step = 0; step < kSteps; ++step) {
        made->train_batch([&] { return batch_of(rows_of(step, 0, 3)); });
      }
      EXPECT_EQ(made->get_global_grad_norm().has_value(), clipping.value_or(0) > 0);
      return whole_weights(*made, model);
    };
    const Weights expected = run(false, {});
    expect_weights(run(true, {}), expected, "nothing said");
    expect_weights(run(true, 0.0), expected, "switched off");
    EXPECT_GT((run(true, 1.0).at("last.bias") - expected.at("last.bias")).abs().max().item<double>(), 1e-3);
  });
}

// A scheduler of torch, or a program's own (MultiStepLR is not in libtorch): called after each step with its loss.
using Schedules = std::function<std::function<void(double loss)>(torch::optim::SGD&)>;

const std::map<std::string, Schedules> kSchedules = {
    {"StepLR",
     [](torch::optim::SGD& sgd) {
       return [scheduler = std::make_shared<torch::optim::StepLR>(sgd, 2, 0.5)](double) { scheduler->step(); };
     }},
    {"several steps",
     [](torch::optim::SGD& sgd) {
       return [&sgd, steps = 0](double) mutable {
         ++steps;
         for (auto& group : sgd.param_groups()) {
           group.options().set_lr(group.options().get_lr() * (steps == 2 || steps == 5 ? 0.1 : 1));
         }
       };
     }},
    {"ReduceLROnPlateau", // whose least rates differ between groups
     [](torch::optim::SGD& sgd) {
       using Plateau = torch::optim::ReduceLROnPlateauScheduler;
       return [scheduler = std::make_shared<Plateau>(sgd, Plateau::max, 0.3f, 0, 1e-4, Plateau::rel, 0,
                                                     std::vector<float>{0.0F, 0.02F})](double loss) {
         scheduler->step(static_cast<float>(loss));
       };
     }}};

std::shared_ptr<torch::optim::SGD> sgd_of(TwoLayers& model) {
  const std::vector<torch::optim::OptimizerParamGroup> groups = {
      {model->first->parameters(),
       std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.1).momentum(0.9))},
      {model->last->parameters(),
       std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.1).momentum(0.9))}};
  return std::make_shared<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1));
}

TEST(TorchOptimizersTest, TorchsSchedulersWorkOnAnEngine) {
  on_ranks(2, [](comm::World& world) {
    for (const auto& [name, schedules] : kSchedules) {
      TwoLayers alone(3, 2, 1);
      const auto sgd = sgd_of(alone);
      const auto after_step = schedules(*sgd);
      for (int step = 0; step < kSteps; ++step) {
        sgd->zero_grad();
        const at::Tensor loss = alone->forward(rows_of_all(step, world.size(), 3)).square().mean();
        loss.backward();
        sgd->step();
        after_step(loss.item<double>());
      }
      EXPECT_LT(sgd->param_groups()[0].options().get_lr(), 0.1) << name << ": it has changed something";
      for (const int stage : {0, 1, 3}) {
        TwoLayers model(3, 2, 1);
        InitializeOptions options = options_for(model, stage);
        const auto followed = sgd_of(model);
        options.optimizer = followed;
        const auto engine = initialize(world, options).engine;
        const auto after = schedules(*followed);
        for (int step = 0; step < kSteps; ++step) {
          after(engine->train_batch([&] { return batch_of(rows_of(step, world.rank(), 3)); }).item<double>());
        }
        expect_weights(whole_weights(*engine, model), weights_of(*alone), concat(name, ", stage ", stage));
      }
    }
  });
}

TEST(TorchOptimizersTest, AFunctionGivesTheRateOfEachStepAndSetLrThatOfAllFurtherOnes) {
  on_ranks(2, [](comm::World& world) {
    const auto train = [&](Engine& engine) {
      engine.train_batch([&] { return batch_of(rows_of(0, world.rank(), 3)); });
    };
    TwoLayers model(3, 2, 1);
    InitializeOptions options = options_for(model, 1);
    options.lr = [](int64_t step) { return 0.5 / static_cast<double>(step); };
    auto engine = initialize(world, options).engine;
    train(*engine);
    EXPECT_EQ(engine->get_lr(), 0.5);
    train(*engine);
    EXPECT_EQ(engine->get_lr(), 0.25);
    EXPECT_THAT(refusal([&] { engine->set_lr(0.1); }), HasSubstr("the schedule Function decides it"));
    engine.reset();
    options.lr = nullptr;
    options.optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.1));
    options.lr = [](int64_t) { return 0.1; };
    EXPECT_THAT(refusal([&] { initialize(world, options); }),
                HasSubstr("a function for the lr with a torch optimizer"));
    options.lr = nullptr;
    options.optimizer = nullptr;
    engine = initialize(world, options).engine;
    engine->set_lr(0.125);
    train(*engine);
    EXPECT_EQ(engine->get_lr(), 0.125);
    EXPECT_THAT(refusal([&] { engine->set_lr(-1); }), HasSubstr("The learning rate of step 2 is -1"));
  });
}

TEST(TorchOptimizersTest, ACheckpointKeepsARateThatWasSet) {
  const ScratchFolder scratch{make_scratch_folder("trireme_set_lr")};
  on_ranks(2, [&](comm::World& world) {
    for (const bool again : {false, true}) {
      TwoLayers model(3, 2, 1);
      const auto engine = initialize(world, options_for(model, 1)).engine;
      if (again) {
        ASSERT_TRUE(engine->load_checkpoint(scratch.path));
      } else {
        engine->set_lr(0.125);
      }
      engine->train_batch([&] { return batch_of(rows_of(0, world.rank(), 3)); });
      EXPECT_EQ(engine->get_lr(), 0.125);
      if (!again) {
        engine->save_checkpoint(scratch.path);
      }
    }
  });
}

TEST(TorchOptimizersTest, RanksWithDifferentRatesAreToldSo) {
  on_ranks(2, [](comm::World& world) {
    TwoLayers model(3, 2, 1);
    InitializeOptions options = options_for(model, 1);
    options.lr = [&](int64_t step) { return step == 2 && world.rank() == 1 ? 0.2 : 0.1; };
    const auto engine = initialize(world, options).engine;
    const auto train = [&] { engine->train_batch([&] { return batch_of(rows_of(0, world.rank(), 3)); }); };
    train();
    EXPECT_THAT(refusal(train), AllOf(HasSubstr("the ranks have different learning rates in step 2"),
                                      HasSubstr("train_batch() returns")));
  });
}

TEST(TorchOptimizersTest, ARateThatIsNoNumberOnOneRankIsRefusedOnAll) {
  const auto refused = [](comm::World& world, double own) {
    TwoLayers model(3, 2, 1);
    const auto engine = initialize(world, options_for(model, 1)).engine;
    return refusal([&] { engine->set_lr(own); });
  };
  for (const int one : {0, 1}) {
    on_ranks(2, [&](comm::World& world) {
      EXPECT_THAT(refused(world, world.rank() == one ? NAN : 0.1),
                  HasSubstr("the ranks have different learning rates"));
    });
  }
  on_ranks(2, [&](comm::World& world) {
    EXPECT_THAT(refused(world, HUGE_VAL), AllOf(HasSubstr("inf"), Not(HasSubstr("different"))));
  });
}

// What one rank's program decides for itself, in each way that it can. A refusal ends the ranks' groups.
void expect_rates_compared(const std::function<std::string(comm::World&, double own)>& refused,
                           const std::string& where) {
  on_ranks(2, [&](comm::World& world) {
    EXPECT_THAT(refused(world, world.rank() == 0 ? 0.1 : 0.2),
                HasSubstr("the ranks have different learning rates in " + where));
  });
}

std::string refused_in_a_step(comm::World& world, const InitializeOptions& options) {
  const auto engine = initialize(world, options).engine;
  return refusal([&] { engine->train_batch([] { return batch_of(rows_of(0, 0, 3)); }); });
}

TEST(TorchOptimizersTest, RatesAreComparedWhateverDecidesThem) {
  const auto of_the_smaller_group = [](comm::World& world, double own) {
    TwoLayers model(3, 2, 1);
    InitializeOptions options = options_for(model, 0);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(model->first->parameters(), std::make_unique<torch::optim::SGDOptions>(0.5));
    groups.emplace_back(model->last->parameters(), std::make_unique<torch::optim::SGDOptions>(0.1));
    const auto optimizer = std::make_shared<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.5));
    options.optimizer = optimizer;
    const auto engine = initialize(world, options).engine;
    optimizer->param_groups()[1].options().set_lr(own);
    return refusal([&] { engine->train_batch([&] { return batch_of(rows_of(0, world.rank(), 3)); }); });
  };
  expect_rates_compared(of_the_smaller_group, "step 1, of parameter group 1: from 0.1 to 0.2");
  const auto stepped_in_backward = [](comm::World& world, double own) {
    InitializeOptions options = options_for(TwoLayers(3, 2, 1), 1);
    options.config.gradient_clipping = 0;
    options.config.step_in_backward = true;
    options.lr = [=](int64_t) { return own; };
    return refused_in_a_step(world, options);
  };
  expect_rates_compared(stepped_in_backward, "step 1: from 0.1 to 0.2");
  const auto in_stages = [](comm::World& world, double own) {
    pipeline::PipelineOptions how;
    how.stages = 2;
    InitializeOptions options = options_for(TwoLayers(3, 2, 1), 0);
    options.model = nullptr;
    options.loss = nullptr;
    options.pipeline = std::make_shared<pipeline::PipelineModule>(
        pipeline::LayerList{pipeline::LayerSpec<torch::nn::Linear>(3, 4), pipeline::LayerSpec<torch::nn::Linear>(4, 3)},
        [](const pipeline::Tensors& y, const pipeline::Tensors& target) { return at::mse_loss(y.at(0), target.at(0)); },
        how);
    options.lr = [=](int64_t) { return own; };
    return refused_in_a_step(world, options);
  };
  expect_rates_compared(in_stages, "step 1: from 0.1 to 0.2");
  const auto set = [](comm::World& world, double own) {
    const auto engine = initialize(world, options_for(TwoLayers(3, 2, 1), 0)).engine;
    return refusal([&] { engine->set_lr(own); });
  };
  expect_rates_compared(set, "set_lr(): from 0.1 to 0.2");
}

} // namespace
} // namespace torch_programs
} // namespace trireme::engine
