// The programs of docs/horovod.md and docs/parameter_averaging.md run as they stand there.
#include <trireme/base/error.h>
#include <trireme/comm/world.h>
#include <trireme/horovod.h>

#include <tests/support/page_code.h>
#include <tests/support/run_ranks.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <memory>

namespace trireme {
using comm::World; // as trireme.h has it
}

namespace {

namespace nn = torch::nn;
using testing::IsEmpty;
using trireme::test::run_processes;

constexpr int64_t steps = 100;
constexpr int64_t batch_size = 2;
constexpr int64_t data_size = 40;

at::Tensor loss(nn::Linear& model, const at::Tensor& x) {
  return model->forward(x).square().mean();
}
at::Tensor loss(nn::Linear& model, const std::vector<size_t>& samples) {
  return loss(model, torch::full({static_cast<int64_t>(samples.size()), 3}, static_cast<double>(samples.front()) / 40));
}
at::Tensor loss(const at::Tensor& everyone) {
  return everyone.matmul(everyone.t()).logsumexp(1).sum();
}
void save(const nn::Linear&) {}
at::Tensor embed(nn::Linear& model, const at::Tensor& x) {
  return model->forward(x);
}

TEST(HorovodPageTest, TheLoop) {
  EXPECT_THAT(run_processes(2,
                            [](int process) {
                              nn::Linear model(3, 2);
                              const auto loader =
                                  std::make_unique<std::vector<at::Tensor>>(5, torch::full({4, 3}, 1.0 + process));
                              namespace hvd = trireme::horovod;
                              hvd::init(); // as trireme::World::connect(): any launcher
                              torch::optim::AdamW adam(model->parameters(), 1e-3);
                              hvd::broadcast_parameters(model->named_parameters(), 0);
                              hvd::broadcast_optimizer_state(adam, 0);
                              hvd::DistributedOptimizer optimizer(adam, model->named_parameters());
                              for (auto& batch : *loader) { // each rank its own part: trireme::TorchSampler
                                optimizer.zero_grad();
                                loss(model, batch).backward(); // gradients travel while backward computes
                                optimizer.step();
                              }
                              const at::Tensor batch = loader->front();
                              {
                                at::Tensor everyone = hvd::allgather(embed(model, batch)); // samples of all ranks
                                loss(everyone).backward();
                                EXPECT_EQ(everyone.size(0), 8);
                              }
                              EXPECT_TRUE(hvd::broadcast(model->weight.detach(), 0).equal(model->weight));
                              hvd::shutdown();
                            }),
              IsEmpty());
}

TEST(HorovodPageTest, TheElasticRun) {
  EXPECT_THAT(run_processes(2,
                            [](int) {
                              namespace hvd = trireme::horovod;
                              nn::Linear model(3, 2);
                              torch::optim::AdamW adam(model->parameters(), 1e-3);
                              hvd::elastic::ElasticSampler sampler(data_size);
                              int64_t step = 0;
                              const int64_t steps = 10;
                              hvd::elastic::TorchState state; // what a run needs to go on
                              state.add("model", *model);     // parameters and buffers
                              state.add("adam", adam);
                              state.add("sampler", sampler);
                              state.add("step", step);
                              hvd::elastic::run(state, [&](trireme::World& world) { // once for each round of ranks
                                hvd::DistributedOptimizer optimizer(adam, model->named_parameters());
                                sampler.reset();
                                for (; step < steps; ++step) {
                                  if (step % 100 == 0) {
                                    state.commit();
                                  }
                                  const auto samples = sampler.next(batch_size);
                                  optimizer.zero_grad();
                                  loss(model, *samples).backward();
                                  optimizer.step();
                                  sampler.record_batch(batch_size);
                                }
                                if (world.rank() == 0) {
                                  save(model);
                                } // here: when run() returns, the training is finished
                                EXPECT_EQ(world.size(), 2);
                              });
                              EXPECT_EQ(step, 10);
                              EXPECT_EQ(sampler.done(), data_size);
                            }),
              IsEmpty());
}

TEST(HorovodPageTest, TheElasticAverage) {
  EXPECT_THAT(run_processes(2,
                            [](int) {
                              namespace hvd = trireme::horovod;
                              nn::Linear model(3, 2);
                              torch::optim::AdamW adam(model->parameters(), 1e-3);
                              hvd::elastic::ElasticSampler sampler(2 * batch_size * steps);
                              int64_t step = 0;
                              hvd::elastic::AveragingState state;
                              state.add("model", *model);
                              state.add("adam", adam); // each replica keeps its own states
                              state.add("sampler", sampler);
                              state.add("step", step);
                              hvd::elastic::run(state, [&](trireme::World&) {
                                sampler.reset();
                                while (step < steps) {
                                  const auto samples = sampler.next(batch_size);
                                  adam.zero_grad();
                                  loss(model, *samples).backward(); // nothing is sent
                                  adam.step();
                                  sampler.record_batch(batch_size);
                                  if (++step % 50 == 0) {
                                    state.average();
                                  }
                                }
                                EXPECT_TRUE(hvd::broadcast(model->weight.detach(), 0).equal(model->weight));
                              });
                              EXPECT_EQ(step, 100);
                            }),
              IsEmpty());
}

TEST(HorovodPageTest, TheLinesAreThoseOfThisFile) {
  EXPECT_GT(trireme::test::code_lines_of("docs/horovod.md", {"tests/extensions/horovod/elastic/page_test.cpp"}), 25);
  EXPECT_GT(
      trireme::test::code_lines_of("docs/parameter_averaging.md", {"tests/extensions/horovod/elastic/page_test.cpp"}),
      15);
}

} // namespace
