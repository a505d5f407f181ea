// Workers that step together equal one process on the whole batch.
#include "server_job.h"

#include <gmock/gmock.h>

#include <cmath>

namespace trireme::engine {
namespace {

using parallel::ServerOptions;
using test::ServerJob;
using testing::IsEmpty;

struct Case {
  int workers;
  int servers;
  ServerOptions::Mode mode;
  int64_t accumulation;
  double clipping;
};

std::vector<Case> cases() {
  using Mode = ServerOptions::Mode;
  std::vector<Case> all = {{1, 1, Mode::sync, 1, 1.0}, {1, 3, Mode::sync, 1, 1.0}, {2, 1, Mode::sync, 1, 0.0},
                           {2, 2, Mode::sync, 2, 1.0}, {3, 2, Mode::sync, 1, 0.1}, {4, 3, Mode::sync, 1, 1.0}};
  all.push_back({2, 2, Mode::stale, 1, 1.0});  // staleness 0
  all.push_back({2, 2, Mode::hybrid, 1, 1.0}); // a time-out that does not come
  all.push_back({1, 2, Mode::async, 1, 1.0});  // one worker waits for nobody
  return all;
}

class ServersTest : public testing::TestWithParam<Case> {};

TEST_P(ServersTest, TwentyStepsEqualOneProcess) {
  const Case c = GetParam();
  constexpr int kSteps = 20;
  ServerOptions options;
  options.servers = c.servers;
  options.mode = c.mode;
  options.timeout_s = 1000;
  ServerJob job(c.workers, options);
  EXPECT_THAT(job.run([&](int number, comm::World& world) {
    models::Gpt model(small_gpt());
    const Initialized made =
        initialize(world, job.engine_options(number, model, small_config(kZeroBatch, c.accumulation, c.clipping)));
    std::vector<double> norms;
    const std::vector<double> losses = plain_losses(kZeroBatch, kSteps, c.clipping, &norms);
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(made.engine->train_batch().item<double>(), losses[step], 1e-5 * losses[step]) << "step " << step;
      EXPECT_NEAR(made.engine->get_global_grad_norm().value(), norms[step], 1e-4 * norms[step]) << "step " << step;
    }
    EXPECT_EQ(made.engine->global_steps(), kSteps);
  }),
              IsEmpty());
  for (int place = 0; place < c.servers; ++place) {
    EXPECT_EQ(job.counters(place).updates, kSteps);
    EXPECT_EQ(job.counters(place).accepted, kSteps * c.workers);
    EXPECT_EQ(job.counters(place).dropped, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ServersTest, testing::ValuesIn(cases()), [](const auto& info) {
  return concat(ServerOptions::name(info.param.mode), "_", info.param.workers, "workers_", info.param.servers,
                "servers_", info.index);
});

std::vector<double> norms_of(const models::Gpt& model) {
  std::vector<double> norms;
  for (const at::Tensor& parameter : model->parameters()) {
    if (parameter.dim() > 1) { // biases begin at 0 and follow the roundings of gradients that are nearly 0
      norms.push_back(parameter.detach().norm().item<double>());
    }
  }
  return norms;
}

// Where workers do not wait for who is late: what the others have made meanwhile counts for it too.
TEST(ServersLateTest, AWorkerCountsTheStepsThatTheOthersHaveMadeWithoutIt) {
  constexpr int kSteps = 6;
  ServerOptions options;
  options.servers = 2;
  options.mode = ServerOptions::Mode::hybrid;
  options.timeout_s = 0.02;
  ServerJob job(2, options);
  const std::filesystem::path done = job.folder() / "done";
  EXPECT_THAT(job.run([&](int number, comm::World& world) {
    models::Gpt model(small_gpt());
    InitializeOptions engine = job.engine_options(number, model, small_config(kZeroBatch, 1));
    engine.loss = [&, number, loss = engine.loss](const data::Batch& batch) {
      while (number == 1 && !std::filesystem::exists(done)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      return loss(batch);
    };
    const Initialized made = initialize(world, engine);
    while (made.engine->global_steps() < kSteps) {
      made.engine->train_batch();
      EXPECT_EQ(made.engine->global_samples(), made.engine->global_steps() * kZeroBatch);
    }
    EXPECT_EQ(made.engine->global_steps(), kSteps);
    if (number == 0) {
      write_file_atomically(done, "");
    }
  }),
              IsEmpty());
  for (int place = 0; place < 2; ++place) {
    EXPECT_EQ(job.counters(place).updates, kSteps);
    EXPECT_EQ(job.counters(place).accepted, kSteps);
    EXPECT_EQ(job.counters(place).dropped, 1);
  }
}

// Trust ratios are of whole parameters: each is on one server. As one rank with the whole batch.
TEST(ServersLambTest, TwentyStepsEqualOneRank) {
  config::EngineConfig config = small_config(kZeroBatch, 1);
  config.optimizer->rule = optim::LambOptions{.lr = 0.05, .weight_decay = 0.1};
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / concat("trireme_lamb_", ::getpid());
  test::on_ranks(1, [&](comm::World& world) {
    SmallRun run(world, config);
    const std::vector<double> before = norms_of(run.model);
    std::string text;
    for (int step = 0; step < 20; ++step) {
      text += concat(run.engine().train_batch().item<double>(), '\n');
    }
    const std::vector<double> after = norms_of(run.model);
    double most = 0;
    for (size_t p = 0; p < after.size(); ++p) {
      text += concat(after[p], '\n');
      most = std::max(most, std::abs(after[p] / before[p] - 1));
    }
    EXPECT_GT(most, 0.05) << "the weights do not move enough to compare them";
    write_file_atomically(file, text);
  });
  for (const int servers : {1, 3}) {
    ServerOptions options;
    options.servers = servers;
    ServerJob job(2, options);
    EXPECT_THAT(job.run([&](int number, comm::World& world) {
      models::Gpt model(small_gpt());
      const Initialized made = initialize(world, job.engine_options(number, model, config));
      std::istringstream expected(read_file(file));
      double value = 0;
      for (int step = 0; step < 20; ++step) {
        expected >> value;
        EXPECT_NEAR(made.engine->train_batch().item<double>(), value, 1e-4 * value) << "step " << step;
      }
      for (const double norm : norms_of(model)) {
        expected >> value;
        EXPECT_NEAR(norm, value, 1e-3 * value);
      }
    }),
                IsEmpty())
        << servers << " servers";
  }
  std::filesystem::remove(file);
}

// Fewer rows than servers: some hold nothing, and answer all the same.
TEST(ServersOfASmallModelTest, AServerMayHoldNothing) {
  ServerOptions options;
  options.servers = 3;
  ServerJob job(2, options);
  EXPECT_THAT(job.run([&](int number, comm::World& world) {
    const auto model = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(4, 1).bias(false));
    InitializeOptions engine;
    engine.model = model;
    engine.loss = [model](const data::Batch& batch) { return model->forward(batch.input()).pow(2).mean(); };
    engine.config = small_config(4, 1);
    engine.config.server = options;
    engine.sync = parallel::server::worker_sync(options, job.worker(number));
    const Initialized made = initialize(world, engine);
    const at::Tensor before = model->weight.detach().clone();
    for (int step = 0; step < 3; ++step) {
      made.engine->backward(made.engine->forward(data::Batch{{torch::ones({2, 4})}, {torch::ones({2})}, 2}));
      made.engine->step();
    }
    EXPECT_FALSE(model->weight.equal(before));
    if (number == 0) {
      made.engine->save_checkpoint(job.folder() / "checkpoints");
    }
  }),
              IsEmpty());
}

// A checkpoint is the same as any other: plain data parallelism goes on from it, and servers from one of plain data
// parallelism.
TEST(ServersCheckpointTest, AnyLayoutGoesOnFromIt) {
  ServerOptions options;
  options.servers = 2;
  ServerJob job(2, options);
  const std::vector<double> losses = plain_losses(kZeroBatch, 12, 1.0);
  const std::filesystem::path folder = job.folder() / "checkpoints";
  EXPECT_THAT(job.run([&](int number, comm::World& world) {
    models::Gpt model(small_gpt());
    const Initialized made = initialize(world, job.engine_options(number, model, small_config(kZeroBatch, 1)));
    for (int step = 0; step < 4; ++step) {
      made.engine->train_batch();
    }
    if (number == 0) {
      made.engine->save_checkpoint(folder);
    }
    made.engine->train_batch();
  }),
              IsEmpty());
  test::on_ranks(2, [&](comm::World& world) {
    SmallRun run(world, small_config(kZeroBatch, 1));
    ASSERT_TRUE(run.engine().load_checkpoint(folder));
    for (int step = 4; step < 8; ++step) {
      EXPECT_NEAR(run.engine().train_batch().item<double>(), losses[step], 1e-5 * losses[step]) << "step " << step;
    }
    run.engine().save_checkpoint(folder);
  });
  options.servers = 3;
  ServerJob again(2, options);
  std::filesystem::copy(folder, again.folder() / "checkpoints", std::filesystem::copy_options::recursive);
  EXPECT_THAT(again.run([&](int number, comm::World& world) {
    models::Gpt model(small_gpt());
    const Initialized made = initialize(world, again.engine_options(number, model, small_config(kZeroBatch, 1)));
    ASSERT_TRUE(made.engine->load_checkpoint(again.folder() / "checkpoints"));
    for (int step = 8; step < 12; ++step) {
      EXPECT_NEAR(made.engine->train_batch().item<double>(), losses[step], 1e-5 * losses[step]) << "step " << step;
    }
  }),
              IsEmpty());
}

// The servers hold the masters: bf16 as with data parallelism of the same number of ranks.
TEST(ServersPrecisionTest, Bf16EqualsDataParallelism) {
  config::EngineConfig config = small_config(kZeroBatch, 1);
  config.precision.compute = precision::Type::bf16;
  config.optimizer->rule = optim::SgdOptions{
      .lr = 0.1, .momentum = 0.9}; // AdamW makes much of gradients that are nearly 0, and the servers add up in fp32
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / concat("trireme_bf16_", ::getpid());
  test::on_ranks(2, [&](comm::World& world) {
    SmallRun run(world, config);
    std::string text;
    for (int step = 0; step < 10; ++step) {
      text += concat(run.engine().train_batch().item<double>(), '\n');
    }
    if (world.rank() == 0) {
      write_file_atomically(file, text);
    }
  });
  ServerOptions options;
  options.servers = 2;
  ServerJob job(2, options);
  EXPECT_THAT(job.run([&](int number, comm::World& world) {
    models::Gpt model(small_gpt());
    const Initialized made = initialize(world, job.engine_options(number, model, config));
    std::istringstream losses(read_file(file));
    for (int step = 0; step < 10; ++step) {
      double loss = 0;
      losses >> loss;
      EXPECT_NEAR(made.engine->train_batch().item<double>(), loss, 2e-3 * loss) << "step " << step;
    }
  }),
              IsEmpty());
  std::filesystem::remove(file);
}

} // namespace
} // namespace trireme::engine
