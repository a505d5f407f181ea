// What programs written for torch do with a model beside its engine: several models, gradients of their own, torch::load(), schedulers.
#include "small_run.h"

#include <trireme/base/file.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <map>
#include <sstream>

namespace trireme::engine {
namespace torch_programs {
namespace {

using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl(int64_t in, int64_t out, int64_t seed) {
    torch::manual_seed(static_cast<uint64_t>(seed));
    first = register_module("first", zero::Sharded<torch::nn::Linear>(in, 12));
    last = register_module("last", zero::Sharded<torch::nn::Linear>(12, out));
  }
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(torch::tanh(first->forward(x)));
  }
  zero::Sharded<torch::nn::Linear> first{nullptr}, last{nullptr};
};
TORCH_MODULE(TwoLayers);

constexpr int kSteps = 6;
constexpr int kRows = 4; // of a rank

at::Tensor rows_of(int step, int rank, int64_t columns) {
  return torch::sin(torch::arange(kRows * columns).reshape({kRows, columns}) * (1.0 + step) + 10.0 * rank);
}

at::Tensor rows_of_all(int step, int ranks, int64_t columns) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(rows_of(step, rank, columns));
  }
  return torch::cat(all);
}

using Weights = std::map<std::string, at::Tensor>;

Weights weights_of(torch::nn::Module& model) {
  Weights found;
  for (const auto& item : model.named_parameters()) {
    found[item.key()] = item.value().detach().clone();
  }
  return found;
}

void expect_weights(const Weights& found, const Weights& expected, const std::string& where) {
  for (const auto& [name, tensor] : expected) {
    EXPECT_LE((found.at(name) - tensor).abs().max().item<double>(), 1e-6) << name << ", " << where;
  }
}

InitializeOptions options_for(TwoLayers model, int stage, int64_t accumulation = 1) {
  InitializeOptions options;
  options.config.batch.micro = kRows;
  options.config.batch.accumulation = accumulation;
  options.config.zero.stage = stage;
  options.config.zero.param_persistence_threshold = 10;
  options.config.data_parallel.bucket_bytes = 200;
  options.model = model.ptr();
  options.loss = [model](const data::Batch& batch) mutable { return model->forward(batch.input()).square().mean(); };
  return options;
}

data::Batch batch_of(const at::Tensor& x) {
  return {{x}, {x}, x.size(0)};
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing was refused";
}

Weights whole_weights(Engine& engine, TwoLayers& model) {
  const auto whole = engine.gather_parameters(model->parameters());
  return weights_of(*model);
}

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
  EXPECT_THAT(run_ranks(2,
                        [](comm::World& world) {
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
                        }),
              IsEmpty());
}

// Before initialize(), between micro-batches, and between backward() and step().
TEST(TorchProgramsTest, GradientsOfOtherBackwardsAreNotTheEngines) {
  EXPECT_THAT(run_ranks(2,
                        [](comm::World& world) {
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
                        }),
              IsEmpty());
}

TEST(TorchProgramsTest, GradOfAParameterIsThatOfTorch) {
  EXPECT_THAT(run_ranks(1,
                        [](comm::World& world) {
                          TwoLayers model(3, 2, 1), alone(3, 2, 1);
                          const auto engine = initialize(world, options_for(model, 0)).engine;
                          const auto grad = [](TwoLayers& of) { return torch::autograd::grad({of->forward(rows_of(0, 0, 3)).sum()}, {of->first->weight})[0]; };
                          EXPECT_TRUE(grad(model).equal(grad(alone)));
                        }),
              IsEmpty());
}

TEST(TorchProgramsTest, AStepWithoutTheEnginesBackwardIsRefused) {
  EXPECT_THAT(run_ranks(1,
                        [](comm::World& world) {
                          TwoLayers model(3, 2, 1);
                          const auto engine = initialize(world, options_for(model, 0, 2)).engine;
                          engine->forward(batch_of(rows_of(0, 0, 3))).backward();
                          EXPECT_THAT(refusal([&] { engine->step(); }), AllOf(HasSubstr("step() of step 1 without backward()"), HasSubstr("loss.backward()")));
                          EXPECT_EQ(engine->global_steps(), 0);
                        }),
              IsEmpty());
}

TEST(TorchProgramsTest, ZeroGradBeginsTheStepAnew) {
  EXPECT_THAT(run_ranks(2,
                        [](comm::World& world) {
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
                        }),
              IsEmpty());
}

TEST(TorchProgramsTest, AModelThatIsLoadedOrConvertedAfterwardsIsNamed) {
  for (const int stage : {0, 3}) {
    for (const bool loads : {true, false}) {
      EXPECT_THAT(run_ranks(2,
                            [&](comm::World& world) {
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
                              EXPECT_THAT(refusal(train), AllOf(HasSubstr("no longer lies in the engine's memory"), HasSubstr("torch::load()"), HasSubstr("before initialize()")));
                            }),
                  IsEmpty());
    }
  }
}

TEST(TorchProgramsTest, AParameterThatIsUnfrozenAfterwardsIsNamed) {
  EXPECT_THAT(run_ranks(1,
                        [](comm::World& world) {
                          TwoLayers model(3, 2, 1);
                          model->first->weight.requires_grad_(false);
                          const auto engine = initialize(world, options_for(model, 0)).engine;
                          const auto train = [&] { engine->train_batch([&] { return batch_of(rows_of(0, 0, 3)); }); };
                          train();
                          model->first->weight.requires_grad_(true);
                          EXPECT_THAT(refusal(train), AllOf(HasSubstr("parameter \"first.weight\" was frozen"), HasSubstr("Unfreeze it before initialize()")));
                          model->first->weight.requires_grad_(false);
                          train();
                        }),
              IsEmpty());
}

TEST(TorchProgramsTest, OnlyWhoAsksForItClipsATorchOptimizersGradients) {
  EXPECT_THAT(run_ranks(1,
                        [](comm::World& world) {
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
                        }),
              IsEmpty());
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
       return [scheduler = std::make_shared<Plateau>(sgd, Plateau::max, 0.3f, 0, 1e-4, Plateau::rel, 0, std::vector<float>{0.0F, 0.02F})](double loss) { scheduler->step(static_cast<float>(loss)); };
     }}};

std::shared_ptr<torch::optim::SGD> sgd_of(TwoLayers& model) {
  const std::vector<torch::optim::OptimizerParamGroup> groups = {
      {model->first->parameters(), std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.1).momentum(0.9))},
      {model->last->parameters(), std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.1).momentum(0.9))}};
  return std::make_shared<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1));
}

TEST(TorchProgramsTest, TorchsSchedulersWorkOnAnEngine) {
  EXPECT_THAT(run_ranks(2,
                        [](comm::World& world) {
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
                        }),
              IsEmpty());
}

TEST(TorchProgramsTest, AFunctionGivesTheRateOfEachStepAndSetLrThatOfAllFurtherOnes) {
  EXPECT_THAT(run_ranks(2,
                        [](comm::World& world) {
                          const auto train = [&](Engine& engine) { engine.train_batch([&] { return batch_of(rows_of(0, world.rank(), 3)); }); };
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
                          EXPECT_THAT(refusal([&] { initialize(world, options); }), HasSubstr("a function for the lr beside a torch optimizer"));
                          options.lr = nullptr;
                          options.optimizer = nullptr;
                          engine = initialize(world, options).engine;
                          engine->set_lr(0.125);
                          train(*engine);
                          EXPECT_EQ(engine->get_lr(), 0.125);
                          EXPECT_THAT(refusal([&] { engine->set_lr(-1); }), HasSubstr("The learning rate of step 2 is -1"));
                        }),
              IsEmpty());
}

TEST(TorchProgramsTest, ACheckpointKeepsARateThatWasSet) {
  const ScratchFolder scratch{make_scratch_folder("trireme_set_lr")};
  EXPECT_THAT(run_ranks(2,
                        [&](comm::World& world) {
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
                        }),
              IsEmpty());
}

TEST(TorchProgramsTest, RanksWithDifferentRatesAreToldSo) {
  EXPECT_THAT(run_ranks(2,
                        [](comm::World& world) {
                          TwoLayers model(3, 2, 1);
                          InitializeOptions options = options_for(model, 1);
                          options.lr = [&](int64_t step) { return step == 2 && world.rank() == 1 ? 0.2 : 0.1; };
                          const auto engine = initialize(world, options).engine;
                          const auto train = [&] { engine->train_batch([&] { return batch_of(rows_of(0, world.rank(), 3)); }); };
                          train();
                          EXPECT_THAT(refusal(train), AllOf(HasSubstr("the ranks have different learning rates in step 2"), HasSubstr("train_batch() returns")));
                        }),
              IsEmpty());
}

// What one rank's program decides for itself, in each way that it can. A refusal ends the ranks' groups.
void expect_rates_compared(const std::function<std::string(comm::World&, double own)>& refused, const std::string& where) {
  EXPECT_THAT(run_ranks(2, [&](comm::World& world) { EXPECT_THAT(refused(world, world.rank() == 0 ? 0.1 : 0.2), HasSubstr("the ranks have different learning rates in " + where)); }), IsEmpty());
}

std::string refused_in_a_step(comm::World& world, const InitializeOptions& options) {
  const auto engine = initialize(world, options).engine;
  return refusal([&] { engine->train_batch([] { return batch_of(rows_of(0, 0, 3)); }); });
}

TEST(TorchProgramsTest, RatesAreComparedWhateverDecidesThem) {
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
        [](const pipeline::Tensors& y, const pipeline::Tensors& target) { return at::mse_loss(y.at(0), target.at(0)); }, how);
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

TEST(TorchProgramsTest, AModelInDoubleIsRefusedAtTheStart) {
  EXPECT_THAT(run_ranks(1,
                        [](comm::World& world) {
                          TwoLayers model(3, 2, 1);
                          model->to(torch::kDouble);
                          EXPECT_THAT(refusal([&] { initialize(world, options_for(model, 0)); }), AllOf(HasSubstr("\"first.weight\" is of type Double"), HasSubstr("model->to(torch::kFloat32)")));
                        }),
              IsEmpty());
}

// A language model's targets in one row have several for each sample.
TEST(TorchProgramsTest, AnEvaluationTakesTensorsWithSeveralRowsForEachSample) {
  EXPECT_THAT(run_ranks(1,
                        [](comm::World& world) {
                          TwoLayers model(3, 2, 1);
                          InitializeOptions options = options_for(model, 0);
                          options.loss = [model](const data::Batch& batch) mutable { return at::mse_loss(model->forward(batch.input()).reshape({-1}), batch.target()); };
                          const auto engine = initialize(world, options).engine;
                          const at::Tensor x = rows_of(0, 0, 3), targets = torch::arange(2.0 * kRows);
                          const torch::NoGradGuard no_grad;
                          const auto expected = [&](int64_t rows) { return at::mse_loss(model->forward(x.narrow(0, 0, rows)).reshape({-1}), targets.narrow(0, 0, 2 * rows)).item<double>(); };
                          EXPECT_NEAR(engine->eval_batch({{x}, {targets}, kRows}).item<double>(), expected(kRows), 1e-6);
                          EXPECT_NEAR(engine->eval_batch({{x}, {targets}, kRows - 1}).item<double>(), expected(kRows - 1), 1e-6);
                          EXPECT_THAT(refusal([&] { engine->eval_batch({{x}, {targets}, 0}); }), HasSubstr("set Batch::samples"));
                        }),
              IsEmpty());
}

TEST(TorchProgramsTest, ASecondBackwardBeforeStepIsRefused) {
  for (const int stage : {0, 1, 2, 3}) {
    EXPECT_THAT(run_ranks(2,
                          [&](comm::World& world) {
                            TwoLayers model(3, 2, 1);
                            const auto engine = initialize(world, options_for(model, stage)).engine;
                            const data::Batch batch = batch_of(rows_of(0, world.rank(), 3));
                            engine->backward(engine->forward(batch));
                            EXPECT_THAT(refusal([&] { engine->backward(engine->forward(batch)); }), AllOf(HasSubstr("a second backward() of one micro-batch in step 1"), HasSubstr("Add the losses")));
                            engine->step();
                            engine->backward(engine->forward(batch));
                            engine->step();
                            EXPECT_EQ(engine->global_steps(), 2);
                          }),
                IsEmpty());
  }
}

// Not only the next step: what is saved and evaluated would be other values than those that are trained.
TEST(TorchProgramsTest, AModelThatWasLoadedIsNotSavedOrEvaluated) {
  EXPECT_THAT(run_ranks(1,
                        [](comm::World& world) {
                          TwoLayers model(3, 2, 1);
                          const auto engine = initialize(world, options_for(model, 0)).engine;
                          std::stringstream saved;
                          torch::save(TwoLayers(3, 2, 9), saved);
                          torch::load(model, saved);
                          const auto told = AllOf(HasSubstr("no longer lies in the engine's memory"), HasSubstr("before initialize()"));
                          EXPECT_THAT(refusal([&] { engine->save_checkpoint("nowhere"); }), told);
                          EXPECT_THAT(refusal([&] { engine->gather_model(); }), told);
                          EXPECT_THAT(refusal([&] { engine->eval_batch(batch_of(rows_of(0, 0, 3))); }), told);
                        }),
              IsEmpty());
}

} // namespace
} // namespace torch_programs
} // namespace trireme::engine
