// Ranks that are killed or come change who trains, and the result is that of a run that was told so.
#include "elastic_job.h"

#include <trireme/base/error.h>
#include <trireme/data/sampler.h>
#include <trireme/horovod.h>
#include <trireme/store/meeting.h>

#include <tests/support/gate.h>
#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <signal.h>

#include <random>
#include <thread>
#include <utility>

namespace trireme::horovod::elastic {
namespace {

namespace nn = torch::nn;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kSamples = 1000;
constexpr int64_t kBatch = 4; // of a rank
constexpr int64_t kSeed = 7;

nn::Sequential make_net() {
  torch::manual_seed(1);
  nn::Sequential net(nn::Linear(3, 5), nn::Tanh(), nn::Linear(5, 1));
  net->to(at::kDouble);
  return net;
}

torch::optim::AdamWOptions adam_options() {
  return torch::optim::AdamWOptions(0.01);
}

at::Tensor loss_of(nn::Sequential& net, const std::vector<int64_t>& samples) {
  const at::Tensor x =
      torch::sin(torch::tensor(samples, at::kDouble).unsqueeze(1) * torch::tensor({0.3, 0.7, 1.1}, at::kDouble));
  return (net->forward(x) - x.sum(1, true)).square().mean();
}

/// From step `from` on, so many ranks.
using History = std::vector<std::pair<int64_t, int>>;

/// One process, with the samples of all ranks that were there.
nn::Sequential reference(const History& history, int64_t steps) {
  nn::Sequential net = make_net();
  torch::optim::AdamW adam(net->parameters(), adam_options());
  const std::vector<int64_t> order = data::permutation(kSamples, kSeed, 0);
  auto next = order.begin();
  for (int64_t step = 0; step < steps; ++step) {
    int ranks = 0;
    for (const auto& [from, size] : history) {
      ranks = step >= from ? size : ranks;
    }
    adam.zero_grad();
    const auto end = next + kBatch * ranks;
    loss_of(net, std::vector<int64_t>(next, end)).backward();
    next = end;
    adam.step();
  }
  return net;
}

bool same(nn::Sequential& a, nn::Sequential& b) {
  const auto of_a = a->parameters(), of_b = b->parameters();
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.allclose(y, 1e-9, 1e-12); });
}

/// What a process trains.
struct Training {
  nn::Sequential net = make_net();
  torch::optim::AdamW adam{net->parameters(), adam_options()};
  ElasticSampler sampler{kSamples, true, kSeed};
  int64_t step = 0;
  TorchState state;
  History history; // of the rounds that this process has seen
  int resets = 0;

  Training() {
    state.add("net", *net);
    state.add("adam", adam);
    state.add("sampler", sampler);
    state.add("step", step);
    state.register_reset_callbacks({[this] { ++resets; }});
  }

  /// `end` tells whether to go on; `at` is called at three places of each step.
  bool run(const std::function<bool()>& end, const std::function<void(int place)>& at, const RunOptions& options) {
    return elastic::run(
        state,
        [&](comm::World& world) {
          EXPECT_EQ(world.size(), size());
          while (!history.empty() && history.back().first >= step) {
            history.pop_back(); // what was done after the commit is forgotten
          }
          history.emplace_back(step, size());
          DistributedOptimizer optimizer(adam, net->named_parameters());
          sampler.reset();
          for (; !end(); ++step) {
            if (step % 3 == 0) {
              state.commit();
            }
            const auto batch = sampler.next(kBatch);
            optimizer.zero_grad();
            at(0);
            loss_of(net, std::vector<int64_t>(batch->begin(), batch->end())).backward();
            at(1);
            optimizer.step();
            sampler.record_batch(kBatch);
            at(2);
          }
        },
        options);
  }
};

struct Death {
  int rank; // of the first round
  int64_t step;
  int place;
};

void PrintTo(const Death& death, std::ostream* out) {
  *out << "rank " << death.rank << " at step " << death.step << ", place " << death.place;
}

Death random_death() {
  std::random_device random;
  return {static_cast<int>(random() % 3), static_cast<int64_t>(random() % 14), static_cast<int>(random() % 3)};
}

class ElasticDeathTest : public ElasticTest, public testing::WithParamInterface<Death> {};
INSTANTIATE_TEST_SUITE_P(Deaths, ElasticDeathTest,
                         testing::Values(Death{0, 7, 0}, Death{1, 5, 1}, Death{2, 9, 2}, Death{0, 0, 1},
                                         random_death()),
                         [](const auto& test) { return concat(test.index); });

// Killed in a step; the others go back to the last commit, and on without it.
TEST_P(ElasticDeathTest, TheOthersGoOnFromTheLastCommit) {
  constexpr int64_t kSteps = 15;
  EXPECT_THAT(
      run_workers(
          3, 2,
          [&](int) {
            Training training;
            training.run([&] { return training.step == kSteps; },
                         [&](int place) {
                           if (training.history.size() == 1 && training.resets == 0 && rank() == GetParam().rank &&
                               training.step == GetParam().step && place == GetParam().place) {
                             ::raise(SIGKILL);
                           }
                         },
                         {.min_ranks = 2, .max_ranks = 3});
            const int64_t commit = GetParam().step / 3 * 3;
            const History expected = commit == 0 ? History{{0, 2}} : History{{0, 3}, {commit, 2}};
            if (GetParam().step % 3 == 2 &&
                GetParam().place == 2) { // the others may have made the next commit before they knew
              EXPECT_TRUE(training.history == expected || training.history == (History{{0, 3}, {commit + 3, 2}}));
            } else {
              EXPECT_EQ(training.history, expected);
            }
            EXPECT_EQ(training.resets, 1);
            nn::Sequential whole = reference(training.history, kSteps);
            EXPECT_TRUE(same(training.net, whole));
            EXPECT_EQ(training.sampler.done(),
                      kBatch * (3 * training.history.back().first + 2 * (kSteps - training.history.back().first)));
          }),
      ElementsAre(HasSubstr("ended by signal 9 (Killed)")));
}

TEST_F(ElasticTest, OneThatComesTakesPartFromACommitOn) {
  test::Gate come;
  EXPECT_THAT(run_workers(3, 3,
                          [&](int worker) {
                            if (worker == 3) {
                              come.wait();
                            }
                            Training training;
                            if (worker == 3) { // it has what nobody wants
                              const at::NoGradGuard no_grad;
                              training.net->parameters()[0].fill_(100);
                              training.step = 55;
                            }
                            int64_t joined = -1;
                            training.state.add("joined", joined);
                            training.run(
                                [&] {
                                  if (size() == 3 && joined < 0) {
                                    joined = training.step;
                                  }
                                  return joined >= 0 && training.step == joined + 5;
                                },
                                [&](int place) {
                                  if (rank() == 0 && training.step == 4 && place == 0) {
                                    come.open();
                                  }
                                },
                                {.min_ranks = worker == 3 ? 1 : 2});
                            EXPECT_GT(joined, 4);
                            EXPECT_EQ(joined % 3, 0) << "at a commit";
                            EXPECT_EQ(training.history,
                                      worker == 3 ? (History{{joined, 3}}) : (History{{0, 2}, {joined, 3}}));
                            nn::Sequential whole = reference({{0, 2}, {joined, 3}}, joined + 5);
                            EXPECT_TRUE(same(training.net, whole));
                          }),
              IsEmpty());
}

// One process ends by an exception of its own, which is its program's; the others go on.
TEST_F(ElasticTest, AnExceptionOfOneRankIsALossForTheOthers) {
  EXPECT_THAT(run_workers(3, 3,
                          [&](int worker) {
                            Training training;
                            training.run([&] { return training.step == 9; },
                                         [&](int place) {
                                           if (worker == 2 && training.step == 4 && place == 1) {
                                             throw std::runtime_error("of the program");
                                           }
                                         },
                                         {.min_ranks = 2, .max_ranks = 3});
                            EXPECT_EQ(training.history, (History{{0, 3}, {3, 2}}));
                            nn::Sequential whole = reference(training.history, 9);
                            EXPECT_TRUE(same(training.net, whole));
                          }),
              ElementsAre("rank 2: of the program"));
}

// It takes part in the decision, and is gone before the ranks are connected.
TEST_F(ElasticTest, OneThatIsLostWhileRanksMeetCostsATimeOut) {
  EXPECT_THAT(run_workers(3, 2,
                          [&](int worker) {
                            if (worker == 3) {
                              store::Meeting meeting({.store = store(),
                                                      .secret = store::Secret::from_environment(),
                                                      .min_ranks = 2,
                                                      .max_ranks = 3});
                              EXPECT_EQ(meeting.next_round().size, 3);
                              ::raise(SIGKILL);
                            }
                            Training training;
                            RunOptions options{.min_ranks = 2, .max_ranks = 3};
                            options.world.timeout = std::chrono::seconds(5);
                            training.run([&] { return training.step == 6; }, [](int) {}, options);
                            EXPECT_EQ(training.history, (History{{0, 2}}));
                            EXPECT_EQ(training.resets, 1);
                            nn::Sequential whole = reference({{0, 2}}, 6);
                            EXPECT_TRUE(same(training.net, whole));
                          }),
              ElementsAre(HasSubstr("ended by signal 9 (Killed)")));
}

// One more than there is room for: when the others had finished, it trained all of it again by itself.
TEST_F(ElasticTest, ASpareEndsWithTheTraining) {
  test::Gate begun;
  EXPECT_THAT(run_workers(3, 3,
                          [&](int worker) {
                            if (worker == 3) {
                              begun.wait(2);
                            }
                            Training training;
                            const bool trained = training.run([&] { return training.step == 6; },
                                                              [&](int place) {
                                                                if (training.step == 0 && place == 0) {
                                                                  begun.open();
                                                                }
                                                              },
                                                              {.min_ranks = 2, .max_ranks = 2});
                            EXPECT_EQ(trained, worker != 3);
                            EXPECT_EQ(training.step, worker == 3 ? 0 : 6);
                            EXPECT_EQ(training.history.size(), worker == 3 ? 0u : 1u);
                          }),
              IsEmpty());
}

TEST_F(ElasticTest, AProgramTrainsTwice) {
  EXPECT_THAT(run_workers(2, 2,
                          [&](int) {
                            for (int time = 0; time < 2; ++time) {
                              Training training;
                              EXPECT_TRUE(training.run([&] { return training.step == 4; }, [](int) {},
                                                       {.min_ranks = 2, .max_ranks = 2}));
                              EXPECT_EQ(training.history, (History{{0, 2}}));
                              nn::Sequential whole = reference(training.history, 4);
                              EXPECT_TRUE(same(training.net, whole));
                            }
                          }),
              IsEmpty());
}

// It is stopped by the system for longer than a stretch; the one that comes waits for it.
TEST_F(ElasticTest, OneThatComesIsNotRankZeroWhileAMemberIsThere) {
  test::Gate come;
  EXPECT_THAT(run_workers(2, 2,
                          [&](int worker) {
                            if (worker == 2) {
                              come.wait();
                            }
                            Training training;
                            if (worker == 2) {
                              training.step = 100; // what nobody wants
                            }
                            const bool trained =
                                training.run([&] { return training.step >= 9 && size() == 2; },
                                             [&](int place) {
                                               if (worker == 1 && training.step == 1 && place == 0) {
                                                 come.open();
                                                 std::this_thread::sleep_for(std::chrono::seconds(2));
                                               } else if (size() == 1 && place == 0) { // until the other one is there
                                                 std::this_thread::sleep_for(std::chrono::milliseconds(50));
                                               }
                                               EXPECT_EQ(rank(), worker - 1);
                                             },
                                             {.min_ranks = 1});
                            EXPECT_TRUE(trained);
                            EXPECT_LT(training.step, 100);
                          }),
              IsEmpty());
}

TEST_F(ElasticTest, EndsWhereRanksAreLostTooOften) {
  EXPECT_THAT(run_workers(4, 2,
                          [&](int worker) {
                            Training training;
                            const auto train = [&] {
                              training.run(
                                  [&] { return training.step == 9; },
                                  [&](int) {
                                    if (worker > 2 &&
                                        training.step == 2 * worker - 4) { // 3 in the first round, 4 in the second
                                      ::raise(SIGKILL);
                                    }
                                  },
                                  {.min_ranks = 1, .max_ranks = 4, .reset_limit = 1});
                            };
                            EXPECT_THAT(error_of(train), HasSubstr("ranks were lost 2 times, and reset_limit is 1"));
                          }),
              ElementsAre(HasSubstr("rank 3: ended by signal 9"), HasSubstr("rank 4: ended by signal 9")));
}

TEST(ElasticPlainTest, WithoutAStoreItIsOneRound) {
  EXPECT_THAT(test::run_processes(2,
                                  [&](int process) {
                                    Training training;
                                    if (process == 1) {
                                      training.step = 3;
                                    }
                                    training.run([&] { return training.step == 7; }, [](int) {}, {});
                                    EXPECT_EQ(training.history, (History{{0, 2}}));
                                    EXPECT_EQ(training.resets, 0);
                                    nn::Sequential whole = reference(training.history, 7);
                                    EXPECT_TRUE(same(training.net, whole));
                                    EXPECT_FALSE(is_initialized());
                                  }),
              IsEmpty());
}

TEST(ElasticPlainTest, WhatTrainThrowsComesOutAndHorovodIsShutDown) {
  EXPECT_THAT(test::run_processes(2,
                                  [&](int process) {
                                    ObjectState state;
                                    const auto train = [&](comm::World&) {
                                      EXPECT_TRUE(is_initialized());
                                      EXPECT_THAT(error_of([&] { run(state, [](comm::World&) {}); }),
                                                  HasSubstr("elastic::run() after init()"));
                                      throw Error("program", concat("its error ", process));
                                    };
                                    EXPECT_THAT(error_of([&] { run(state, train); }),
                                                HasSubstr(concat("its error ", process)));
                                    EXPECT_FALSE(is_initialized());
                                  }),
              IsEmpty());
}

TEST_F(ElasticTest, VariablesThatMakeNoSense) {
  const auto said = [](const char* variable, const char* value) {
    const std::string before = ::getenv(variable) == nullptr ? "" : ::getenv(variable);
    ::setenv(variable, value, 1);
    ObjectState state;
    const std::string text = error_of([&] { run(state, [](comm::World&) {}); });
    before.empty() ? ::unsetenv(variable) : ::setenv(variable, before.c_str(), 1);
    return text;
  };
  EXPECT_THAT(said("TRIREME_ELASTIC", "nowhere"), HasSubstr("Give HOST:PORT"));
  EXPECT_THAT(said("TRIREME_ELASTIC", "host:x"), HasSubstr("TRIREME_ELASTIC: expected a whole number >= 1, got \"x\""));
  EXPECT_THAT(said("TRIREME_ELASTIC_RANKS", "2:many"), HasSubstr("got \"many\""));
  EXPECT_THAT(said("TRIREME_ELASTIC_RANKS", "0"), HasSubstr("expected a whole number >= 1, got \"0\""));
  EXPECT_THAT(said("TRIREME_ELASTIC_TIMEOUT", "soon"), HasSubstr("TRIREME_ELASTIC_TIMEOUT"));
  EXPECT_THAT(said("TRIREME_SECRET_FILE", ""), HasSubstr("anybody could join"));
}

} // namespace
} // namespace trireme::horovod::elastic
