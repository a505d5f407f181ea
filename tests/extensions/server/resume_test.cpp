// Engines that go on from a checkpoint with parameter servers: no update is lost, and the optimizer's steps are those
// of the servers, whatever goes on from them.
#include "server_job.h"

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/models/gpt_layers.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <functional>

namespace trireme::engine {
namespace {

using parallel::ServerOptions;
using test::ServerJob;
using testing::IsEmpty;

constexpr double kLr = 0.01;

/// One parameter of four elements, whose gradient is 1 whatever its value is.
struct Counter {
  std::shared_ptr<torch::nn::LinearImpl> model =
      std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(4, 1).bias(false));

  InitializeOptions options(optim::Rule rule) const {
    InitializeOptions options;
    options.model = model;
    options.loss = [model = model](const data::Batch& batch) { return model->forward(batch.input()).mean(); };
    options.config = small_config(4, 1, 0);
    options.config.optimizer->rule = std::move(rule);
    return options;
  }
  static void step(Engine& engine) {
    engine.backward(engine.forward(data::Batch{{torch::ones({2, 4})}, {torch::ones({2})}, 2}));
    engine.step();
  }
  double value() const { return model->weight.detach()[0][0].item<double>(); }
};

void wait_for(const std::filesystem::path& file) {
  for (int tries = 0; !std::filesystem::exists(file); ++tries) {
    if (tries > 10000) {
      throw Error("test", concat(file.string(), " does not come"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

ServerOptions servers(ServerOptions::Mode mode) {
  ServerOptions options;
  options.servers = 2;
  options.mode = mode;
  return options;
}

int64_t saved_steps(const std::filesystem::path& folder) {
  return checkpoint::Checkpoint::open(folder).state().at("optimizer").at("steps").get<int64_t>();
}

constexpr int kFirst = 5; // steps of worker 0
constexpr int kSecond = 7;

// Two workers that do not wait for each other; the first one saves when both are done.
void train_alone(const ServerJob& job, comm::World& world, int number, const optim::Rule& rule,
                 const std::filesystem::path& folder) {
  const Counter counter;
  InitializeOptions options = counter.options(rule);
  options.config.server = servers(ServerOptions::Mode::async);
  options.sync = parallel::server::worker_sync(options.config.server, job.worker(number));
  const Initialized made = initialize(world, options);
  if (number == 1) {
    for (int step = 0; step < kSecond; ++step) {
      Counter::step(*made.engine);
    }
    write_file_atomically(job.folder() / "second is done", "");
    wait_for(job.folder() / "saved");
    return;
  }
  for (int step = 0; step < kFirst - 1; ++step) {
    Counter::step(*made.engine);
  }
  wait_for(job.folder() / "second is done");
  Counter::step(*made.engine);
  made.engine->save_checkpoint(folder);
  EXPECT_EQ(made.engine->global_steps(), kFirst);
  write_file_atomically(job.folder() / "saved", "");
}

class ServersResumeTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }
  void save(const optim::Rule& rule) {
    ServerJob job(2, servers(ServerOptions::Mode::async));
    EXPECT_THAT(job.run([&](int number, comm::World& world) { train_alone(job, world, number, rule, folder); }),
                IsEmpty());
  }
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / concat("trireme_resume_", ::getpid());
};

// A gradient of 1 in each step, so that the moments are known: after T steps m = 1 - beta1^T and v = 1 - beta2^T,
// corrected 1. With another count of the steps the update is another one.
TEST_F(ServersResumeTest, AdamGoesOnWithTheStepsThatTheServersHaveMade) {
  const optim::AdamOptions adam{.lr = kLr, .beta2 = 0.95};
  save(adam);
  const auto goes_on = [&](Engine& engine, const Counter& counter) {
    ASSERT_TRUE(engine.load_checkpoint(folder));
    EXPECT_EQ(engine.global_steps(), kFirst) << "the data and the schedule are worker 0's";
    for (int step = 0; step < 3; ++step) {
      const double before = counter.value();
      Counter::step(engine);
      EXPECT_NEAR(counter.value(), before - kLr, 1e-6) << "step " << step;
    }
  };
  test::on_ranks(1,
                 [&](comm::World& world) { // one process
                   EXPECT_EQ(saved_steps(folder), kFirst + kSecond);
                   const Counter counter;
                   InitializeOptions options = counter.options(adam);
                   options.config.batch.train = 2;
                   const Initialized made = initialize(world, options);
                   goes_on(*made.engine, counter);
                 });
  test::on_ranks(2,
                 [&](comm::World& world) { // data parallelism
                   const Counter counter;
                   const Initialized made = initialize(world, counter.options(adam));
                   goes_on(*made.engine, counter);
                 });
  ServerJob job(2, servers(ServerOptions::Mode::sync));
  EXPECT_THAT(job.run([&](int number, comm::World& world) {
    const Counter counter;
    InitializeOptions options = counter.options(adam);
    options.config.server = servers(ServerOptions::Mode::sync);
    options.sync = parallel::server::worker_sync(options.config.server, job.worker(number));
    const Initialized made = initialize(world, options);
    goes_on(*made.engine, counter);
  }),
              IsEmpty());
}

// The first worker is late: what the second one has made of the checkpoint meanwhile stays.
TEST_F(ServersResumeTest, NoUpdateIsLostWhenTheFirstWorkerComesLate) {
  const optim::SgdOptions sgd{.lr = 1};
  save(sgd);
  double saved = 0;
  test::on_ranks(1, [&](comm::World& world) {
    const Counter counter;
    InitializeOptions options = counter.options(sgd);
    options.config.batch.train = 2;
    const Initialized made = initialize(world, options);
    ASSERT_TRUE(made.engine->load_checkpoint(folder));
    write_file_atomically(folder / "value", concat(counter.value()));
  });
  saved = std::stod(read_file(folder / "value"));
  ServerJob job(2, servers(ServerOptions::Mode::async));
  EXPECT_THAT(job.run([&](int number, comm::World& world) {
    const Counter counter;
    InitializeOptions options = counter.options(sgd);
    options.config.server = servers(ServerOptions::Mode::async);
    options.sync = parallel::server::worker_sync(options.config.server, job.worker(number));
    const Initialized made = initialize(world, options);
    if (number == 0) {
      wait_for(job.folder() / "second is done");
    }
    ASSERT_TRUE(made.engine->load_checkpoint(folder));
    EXPECT_EQ(made.engine->global_steps(), kFirst) << "each worker takes its own steps";
    for (int step = 0; step < 3; ++step) {
      Counter::step(*made.engine);
    }
    if (number == 1) {
      EXPECT_NEAR(counter.value(), saved - 3, 1e-4);
      write_file_atomically(job.folder() / "second is done", "");
      wait_for(job.folder() / "first is done");
    } else {
      EXPECT_NEAR(counter.value(), saved - 6, 1e-4) << "each gradient is 1";
      made.engine->save_checkpoint(job.folder() / "again");
      EXPECT_EQ(saved_steps(job.folder() / "again"), kFirst + kSecond + 6);
      write_file_atomically(job.folder() / "first is done", "");
    }
  }),
              IsEmpty());
  EXPECT_EQ(job.counters(0).accepted, 6);
  EXPECT_EQ(job.counters(0).dropped, 0);
}

// A worker process that is started again, as a program that knows only how to load its checkpoint does it.
TEST_F(ServersResumeTest, AWorkerThatIsStartedAgainGoesOnWhereTheOthersAre) {
  const optim::SgdOptions sgd{.lr = 1};
  save(sgd);
  for (const auto mode : {ServerOptions::Mode::async, ServerOptions::Mode::sync}) {
    ServerJob job(2, servers(mode));
    EXPECT_THAT(job.run([&](int number, comm::World& world) {
      const auto begin = [&](const Counter& counter, bool restarted) {
        InitializeOptions options = counter.options(sgd);
        options.config.server = servers(mode);
        parallel::server::WorkerOptions worker = job.worker(number);
        worker.restarted = restarted;
        options.sync = parallel::server::worker_sync(options.config.server, worker);
        Initialized made = initialize(world, options);
        EXPECT_TRUE(made.engine->load_checkpoint(folder));
        return made;
      };
      Counter counter;
      Initialized made = begin(counter, false);
      Counter::step(*made.engine);
      if (number == 0) {
        made = {}; // it ends
        write_file_atomically(job.folder() / "first is gone", "");
        wait_for(job.folder() / "second is further");
        counter = Counter();
        made = begin(counter, true);
        EXPECT_EQ(made.engine->global_steps(), kFirst + 4);
        write_file_atomically(job.folder() / "first is back", "");
        Counter::step(*made.engine);
        EXPECT_EQ(made.engine->global_steps(), kFirst + 5);
        return;
      }
      wait_for(job.folder() / "first is gone");
      for (int step = 0; step < 3; ++step) {
        Counter::step(*made.engine);
      }
      write_file_atomically(job.folder() / "second is further", "");
      wait_for(job.folder() / "first is back");
      if (mode == ServerOptions::Mode::sync) {
        Counter::step(*made.engine); // together with it
      }
    }),
                IsEmpty())
        << ServerOptions::name(mode);
  }
}

TEST_F(ServersResumeTest, AWorkerWithoutTheCheckpointIsRefused) {
  save(optim::SgdOptions{.lr = 1});
  ServerJob job(2, servers(ServerOptions::Mode::sync));
  EXPECT_THAT(job.run([&](int number, comm::World& world) {
    const Counter counter;
    InitializeOptions options = counter.options(optim::SgdOptions{.lr = 1});
    options.config.server = servers(ServerOptions::Mode::sync);
    options.sync = parallel::server::worker_sync(options.config.server, job.worker(number));
    const Initialized made = initialize(world, options);
    if (number == 0) {
      ASSERT_TRUE(made.engine->load_checkpoint(folder));
      write_file_atomically(job.folder() / "loaded", "");
      wait_for(job.folder() / "refused");
      Counter::step(*made.engine);
      return;
    }
    wait_for(job.folder() / "loaded");
    try {
      Counter::step(*made.engine);
      ADD_FAILURE() << "it trains";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("worker 1 has loaded no checkpoint, but other workers have"));
    }
    write_file_atomically(job.folder() / "refused", "");
  }),
              IsEmpty());
}

// Each worker has masks of its own, those that the data rank of its number has.
TEST(ServersMasksTest, WithSeedLayersTheyAreThoseOfDataRanks) {
  constexpr int kSteps = 4;
  const auto losses_of = [](comm::World& world, const std::function<void(InitializeOptions&)>& more) {
    pipeline::PipelineOptions pipeline;
    pipeline.seed_layers = true;
    InitializeOptions options;
    options.pipeline =
        std::make_shared<pipeline::PipelineModule>(models::gpt_layers(small_gpt(0.3)), models::token_loss, pipeline);
    options.config = small_config(kZeroBatch, 2);
    options.training_data = std::make_shared<Counting>();
    options.shuffle = false;
    more(options);
    const Initialized made = initialize(world, options);
    std::string text;
    for (int step = 0; step < kSteps; ++step) {
      text += concat(made.engine->train_batch().item<double>(), ' ');
    }
    return text;
  };
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / concat("trireme_masks_", ::getpid());
  test::on_ranks(2, [&](comm::World& world) {
    const std::string losses = losses_of(world, [](InitializeOptions&) {});
    if (world.rank() == 0) {
      write_file_atomically(file, losses);
    }
  });
  ServerOptions options;
  options.servers = 1;
  ServerJob job(2, options);
  EXPECT_THAT(job.run([&](int number, comm::World& world) {
    std::istringstream found(losses_of(world, [&](InitializeOptions& engine) {
      engine.config.server = options;
      engine.sync = parallel::server::worker_sync(options, job.worker(number));
    }));
    std::istringstream expected(read_file(file));
    for (int step = 0; step < kSteps; ++step) {
      double a = 0;
      double b = 0;
      found >> a;
      expected >> b;
      EXPECT_NEAR(a, b, 1e-4 * b) << "step " << step;
    }
  }),
              IsEmpty());
  std::filesystem::remove(file);
}

} // namespace
} // namespace trireme::engine
