// Replicas that are lost and come: with nobody lost the bits of replicas in one world, else the papers' formulas over
// those that are there.
#include "averaging_run.h"

#include <trireme/base/file.h>
#include <trireme/comm/environment.h>
#include <trireme/extensions/averaging/elastic_averaging_sync.h>
#include <trireme/shards/bucket/state_store.h>
#include <trireme/store/client.h>

#include <tests/extensions/horovod/elastic/elastic_job.h>
#include <tests/support/gate.h>
#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <thread>

namespace trireme::engine {
namespace {

using namespace std::chrono_literals;

using test::error_of;
using test::on_ranks;
using test::run_ranks;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct ElasticKind {
  std::string name;
  AveragingOptions options;
  bool adam = false;
};

std::string bytes_of(AveragingRun& run) {
  std::string bytes;
  for (const at::Tensor& parameter : run.parameters()) {
    const at::Tensor values = parameter.detach().contiguous();
    bytes.append(static_cast<const char*>(values.data_ptr()), values.nbytes());
  }
  return bytes;
}

/// Replicas of a job, each in a world of its own. Worker 0 of the processes is the job's store; replica r is worker r
/// + 1.
class ElasticAveraging : public horovod::elastic::ElasticTest {
 protected:
  ElasticAveraging()
      : folder_(std::filesystem::path(testing::TempDir()) / concat("trireme_elastic_averaging_", ::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~ElasticAveraging() override { std::filesystem::remove_all(folder_); }
  std::function<void(InitializeOptions&)> replica(int number, int of, std::chrono::milliseconds patience = 60s) const {
    return [this, number, of, patience](InitializeOptions& options) {
      options.sync = parallel::replica_sync(options.config.averaging, {.replica = number,
                                                                       .replicas = of,
                                                                       .store = store(),
                                                                       .secret = store::Secret::from_environment(),
                                                                       .patience = patience});
    };
  }
  static AveragingOptions elastic(AveragingOptions options) {
    options.elastic = true;
    return options;
  }
  static comm::World alone() { return comm::World::connect(comm::Environment()); }
  // Until process `number` of the job waits for a meeting.
  void wait_for_process(int number) const {
    const auto client = store::Client::connect(store(), store::Secret::from_environment(), "",
                                               std::chrono::steady_clock::now() + std::chrono::seconds(30));
    while (!client->wait({concat("elastic/come/", number)}, std::chrono::seconds(1))) {
    }
  }
  static void expect_same(AveragingRun& run, const PlainReplicas& plain, int replica, int64_t step) {
    const auto mine = run.parameters();
    const auto theirs = plain.parameters(replica);
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_TRUE(torch::allclose(mine[i], theirs[i], 1e-4, 2e-5))
          << "step " << step << ", parameter " << i << " by " << (mine[i] - theirs[i]).abs().max();
    }
  }

  const std::filesystem::path folder_;
};

class ElasticKindTest : public ElasticAveraging, public testing::WithParamInterface<ElasticKind> {};

TEST_P(ElasticKindTest, WithNobodyLostHasTheBitsOfOneWorld) {
  const ElasticKind& kind = GetParam();
  const auto file = [this](int replica, int step) { return folder_ / concat(replica, '_', step); };
  ASSERT_THAT(run_ranks(3,
                        [&](comm::World& world) {
                          torch::manual_seed(7 + world.rank()); // all begin as the first one
                          AveragingRun run(world, averaging_config(kind.options, kind.adam));
                          for (int step = 1; step <= 7; ++step) {
                            run.train(1);
                            write_file_atomically(file(world.rank(), step), bytes_of(run));
                          }
                        }),
              IsEmpty());
  EXPECT_THAT(run_workers(3, 3,
                          [&](int worker) {
                            comm::World world = alone();
                            torch::manual_seed(6 + worker);
                            AveragingRun run(world, averaging_config(elastic(kind.options), kind.adam), 1, 1,
                                             std::nullopt, replica(worker - 1, 3));
                            EXPECT_FALSE(run.engine().workers()->join());
                            EXPECT_EQ(run.engine().workers()->is_first(), worker == 1);
                            for (int step = 1; step <= 7; ++step) {
                              const int64_t before = run.engine().bytes_sent();
                              run.train(1);
                              EXPECT_EQ(bytes_of(run) == read_file(file(worker - 1, step)), true) << "step " << step;
                              EXPECT_EQ(run.engine().bytes_sent() == before, step % 3 != 0) << "step " << step;
                            }
                          }),
              IsEmpty());
}

TEST_P(ElasticKindTest, OneThatIsLostChangesTheMeanAndOneThatComesTakesIt) {
  const ElasticKind& kind = GetParam();
  test::Gate second_start;
  EXPECT_THAT(run_workers(4, 3,
                          [&](int worker) {
                            const int number = worker == 4 ? 2 : worker - 1; // the fourth process is replica 2 again
                            PlainReplicas plain(3, kind.options, kind.adam);
                            if (worker == 4) {
                              second_start.wait();
                            }
                            comm::World world = alone();
                            torch::manual_seed(worker == 4 ? 99 : 7);
                            AveragingRun run(world, averaging_config(elastic(kind.options), kind.adam), 1, 1,
                                             std::nullopt, replica(number, 3));
                            EXPECT_EQ(run.engine().workers()->join(), worker == 4);
                            EXPECT_EQ(run.engine().global_steps(), worker == 4 ? 9 : 0);
                            for (int64_t step = 1; step <= 15; ++step) {
                              if (step == 5) {
                                plain.lose(2);
                              } else if (step == 9) {
                                plain.come(2);
                              }
                              plain.step(step);
                              if (worker == 4 && step < 9) {
                                continue;
                              }
                              if (run.engine().global_steps() < step) {
                                run.train(1);
                              }
                              if (worker == 3 && step == 4) {
                                ::raise(SIGKILL);
                              }
                              expect_same(run, plain, number, step);
                              EXPECT_EQ(run.engine().workers()->is_first(), worker == 1) << "step " << step;
                              if (worker < 3 && step == 7) {
                                if (worker == 1) {
                                  second_start.open();
                                }
                                wait_for_process(4); // both: a look that began before would miss it
                              }
                            }
                          }),
              ElementsAre(HasSubstr("rank 3: ended by signal 9")));
}

INSTANTIATE_TEST_SUITE_P(
    All, ElasticKindTest,
    testing::Values(
        ElasticKind{"sgd_mean", {.every = 3}},
        ElasticKind{"sgd_slowmo", {.every = 3, .outer = Outer::slowmo, .outer_lr = 0.9, .outer_momentum = 0.6}},
        ElasticKind{
            "adamw_nesterov", {.every = 3, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9}, true},
        ElasticKind{"adamw_average", {.every = 3, .states = States::average}, true},
        ElasticKind{"adamw_reset", {.every = 3, .states = States::reset}, true}),
    [](const auto& info) { return info.param.name; });

/// Memory that ends its process when it is asked for the `last`-th time; it counts from arm() on.
class DeadlyStore final : public bucket::StateStore {
 public:
  int64_t add(const std::vector<bucket::StoredArray>& arrays, at::Device device) override {
    return memory_->add(arrays, device);
  }
  const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) override {
    if (++acquired == last) {
      ::raise(SIGKILL);
    }
    return memory_->acquire(buffer, bucket);
  }
  void release(int64_t buffer, int64_t bucket, bool modified) override { memory_->release(buffer, bucket, modified); }
  void prefetch(int64_t buffer, int64_t bucket) override { memory_->prefetch(buffer, bucket); }
  int acquired = 0;
  int last = -1;

 private:
  std::unique_ptr<bucket::StateStore> memory_ =
      bucket::make_memory_store([](int64_t numel, at::ScalarType type, at::Device device) {
        return torch::zeros({numel}, at::TensorOptions(type).device(device));
      });
};

// It has given some of its parameters already: none of them counts.
TEST_F(ElasticAveraging, OneThatDiesInTheMiddleOfAMeetingIsNoPartOfIt) {
  const AveragingOptions options{.every = 3, .states = States::average};
  EXPECT_THAT(run_workers(3, 2,
                          [&](int worker) {
                            comm::World world = alone();
                            DeadlyStore* states = nullptr;
                            torch::manual_seed(7);
                            AveragingRun run(world, averaging_config(elastic(options), true), 1, 1, std::nullopt,
                                             [&](InitializeOptions& more) {
                                               replica(worker - 1, 3)(more);
                                               more.state_store = [&] {
                                                 auto made = std::make_unique<DeadlyStore>();
                                                 states = made.get();
                                                 return made;
                                               };
                                             });
                            run.engine().workers()->join();
                            PlainReplicas plain(3, options, true);
                            for (int64_t step = 1; step <= 9; ++step) {
                              if (step == 6) {
                                plain.lose(2);
                              }
                              plain.step(step);
                              if (worker == 3 && step == 5) {
                                states->acquired = 0;
                              } else if (worker == 3 && step == 6) {
                                EXPECT_GT(states->acquired, 2) << "buckets";
                                states->last = 2 * states->acquired + 2; // the second bucket of the meeting
                              }
                              run.train(1);
                              expect_same(run, plain, worker - 1, step);
                            }
                          }),
              ElementsAre(HasSubstr("rank 3: ended by signal 9")));
}

// A step that is over when it comes is not averaged in: it takes the mean of those that have gone on.
TEST_F(ElasticAveraging, OneThatIsTooLateTakesTheMeanOfTheOthers) {
  test::Gate gone_on;
  const AveragingOptions options{.every = 3};
  EXPECT_THAT(run_workers(2, 2,
                          [&](int worker) {
                            ::setenv("TRIREME_TIMEOUT", "15",
                                     1); // so long a world is left where one of it lives and does not come
                            comm::World world = alone();
                            torch::manual_seed(7);
                            AveragingRun run(world, averaging_config(elastic(options)), 1, 1, std::nullopt,
                                             replica(worker - 1, 2, worker == 1 ? 5s : 60s));
                            if (worker == 1) {
                              wait_for_process(1); // the other one, which is patient, has come
                            }
                            run.engine().workers()->join();
                            PlainReplicas plain(2, options);
                            if (worker == 1) {
                              plain.lose(1);
                              for (int64_t step = 1; step <= 6; ++step) {
                                plain.step(step);
                                run.train(1);
                                expect_same(run, plain, 0, step);
                              }
                              gone_on.open();
                              wait_for_process(3); // the late one, under another number
                            } else {
                              run.train(2);
                              plain.lose(1);
                              for (int64_t step = 1; step <= 8; ++step) {
                                plain.step(step);
                              }
                              plain.come(1);
                              plain.step(9);
                              gone_on.wait();
                              run.train(1); // the meeting of its step 3 is long over
                              EXPECT_EQ(run.engine().global_steps(), 9);
                            }
                            if (worker == 1) {
                              for (int64_t step = 7; step <= 9; ++step) {
                                if (step == 9) {
                                  plain.come(1);
                                }
                                plain.step(step);
                                run.train(1);
                              }
                            }
                            for (int64_t step = 9; step <= 12; ++step) {
                              if (step > 9) {
                                plain.step(step);
                                run.train(1);
                              }
                              expect_same(run, plain, worker - 1, step);
                            }
                          }),
              IsEmpty());
}

// Killed in a stretch that lasts longer than the others wait for it, and started again: it trained by itself until
// then.
TEST_F(ElasticAveraging, OneThatIsStartedAgainWaitsForTheEndOfALongStretch) {
  test::Gate killed;
  test::Gate waits;
  EXPECT_THAT(run_workers(3, 2,
                          [&](int worker) {
                            if (worker == 3) {
                              killed.wait();
                            }
                            comm::World world = alone();
                            torch::manual_seed(7);
                            AveragingRun run(world, averaging_config(elastic({.every = 3})), 1, 1, std::nullopt,
                                             replica(worker == 1 ? 0 : 1, 2, worker == 3 ? 5s : 60s));
                            if (worker == 3) {
                              waits.open();
                              EXPECT_TRUE(run.engine().workers()->join()) << "it begins by itself";
                              EXPECT_EQ(run.engine().global_steps(), 6);
                              EXPECT_FALSE(run.engine().workers()->is_first());
                              run.train(3);
                              EXPECT_TRUE(run.engine().workers()->finish()) << "the first one has saved";
                              return;
                            }
                            EXPECT_FALSE(run.engine().workers()->join());
                            run.train(4);
                            if (worker == 2) {
                              killed.open();
                              ::raise(SIGKILL);
                            }
                            waits.wait();
                            wait_for_process(3);
                            std::this_thread::sleep_for(std::chrono::seconds(8));
                            run.train(5);
                            EXPECT_TRUE(run.engine().workers()->is_first());
                            EXPECT_EQ(run.engine().global_steps(), 9);
                            EXPECT_TRUE(run.engine().workers()->finish());
                          }),
              ElementsAre(HasSubstr("rank 2: ended by signal 9")));
}

// The one that saves is lost when the last step is done: another one has the same model.
TEST_F(ElasticAveraging, TheNextOneSavesWhenTheFirstIsLostAtTheEnd) {
  EXPECT_THAT(run_workers(3, 2,
                          [&](int worker) {
                            comm::World world = alone();
                            torch::manual_seed(7);
                            AveragingRun run(world, averaging_config(elastic({.every = 3})), 1, 1, std::nullopt,
                                             replica(worker - 1, 3));
                            run.engine().workers()->join();
                            run.train(3);
                            if (worker == 1) {
                              ::raise(SIGKILL);
                            }
                            const bool finished = run.engine().workers()->finish();
                            EXPECT_EQ(finished, worker == 3);
                            EXPECT_EQ(run.engine().workers()->is_first(), worker == 2);
                            if (!finished) {
                              EXPECT_TRUE(run.engine().workers()->finish()) << "now that it has saved";
                            }
                          }),
              ElementsAre(HasSubstr("rank 1: ended by signal 9")));
}

TEST_F(ElasticAveraging, OneThatComesWhenAllIsDoneIsToldSo) {
  test::Gate done;
  EXPECT_THAT(run_workers(2, 2,
                          [&](int worker) {
                            if (worker == 2) {
                              done.wait();
                            }
                            comm::World world = alone();
                            torch::manual_seed(7);
                            AveragingRun run(world, averaging_config(elastic({.every = 3})), 1, 1, std::nullopt,
                                             replica(0, 1));
                            if (worker == 2) {
                              EXPECT_THROW(run.engine().workers()->join(), store::FinishedError);
                              return;
                            }
                            run.engine().workers()->join();
                            run.train(3);
                            EXPECT_TRUE(run.engine().workers()->finish());
                            done.open();
                          }),
              IsEmpty());
}

TEST_F(ElasticAveraging, WhatDoesNotGoTogetherIsRefused) {
  on_ranks(2, [&](comm::World& world) {
    EXPECT_THAT(error_of([&] { AveragingRun(world, averaging_config(elastic({.every = 3}))); }),
                HasSubstr("it needs its replica number"));
    EXPECT_THAT(error_of([&] {
                  AveragingRun(world, averaging_config(elastic({.every = 3})), 1, 1, std::nullopt, replica(0, 2));
                }),
                HasSubstr("a replica of 2 ranks"));
  });
  comm::World world = alone();
  EXPECT_THAT(error_of([&] {
                AveragingRun(world, averaging_config(elastic({.every = 3, .start_step = 5})), 1, 1, std::nullopt,
                             replica(0, 2));
              }),
              HasSubstr("\"elastic\" with start_step 5"));
  EXPECT_THAT(error_of([&] { AveragingRun(world, averaging_config({.every = 3}), 1, 1, std::nullopt, replica(0, 2)); }),
              HasSubstr("InitializeOptions::sync is of kind \"elastic\""));
  AveragingRun run(world, averaging_config(elastic({.every = 1})), 1, 1, std::nullopt, replica(0, 1));
  EXPECT_THAT(error_of([&] { run.train(1); }), HasSubstr("has not joined the others"));
}

} // namespace
} // namespace trireme::engine
