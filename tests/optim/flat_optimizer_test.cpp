#include "flat_rank.h"

#include <trireme/base/error.h>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <barrier>
#include <map>
#include <mutex>
#include <thread>

namespace trireme::optim {
namespace {

using ::testing::HasSubstr;

void add(std::map<std::string, at::Tensor>& sum, const std::map<std::string, at::Tensor>& part) {
  for (const auto& [name, tensor] : part) {
    const auto [place, is_new] = sum.try_emplace(name, tensor);
    if (!is_new) {
      place->second = place->second + tensor;
    }
  }
}

/// Runs f(rank) on threads that can add up tensors among them.
template <class F>
void run_ranks(int size, const OptimizerOptions& options, at::ScalarType type, const F& f) {
  std::barrier barrier(size);
  std::mutex mutex;
  at::Tensor total;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(std::make_unique<Rank>(options, r, size, type));
    ranks.back()->optimizer().sum_over([&](at::Tensor& sums, int) {
      {
        const std::lock_guard lock(mutex);
        total = total.defined() ? total + sums : sums.clone();
      }
      barrier.arrive_and_wait();
      sums.copy_(total);
      barrier.arrive_and_wait();
      const std::lock_guard lock(mutex);
      total = at::Tensor();
    });
  }
  std::mutex one_at_a_time;
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      for (int64_t step = 1; step <= 5; ++step) {
        {
          const std::lock_guard lock(one_at_a_time); // the random seed is the process's
          ranks[r]->begin(step);
        }
        ranks[r]->optimizer().prepare();
        ranks[r]->step_all();
        barrier.arrive_and_wait();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (auto& rank : ranks) {
    f(*rank);
  }
}

TEST(FlatOptimizerTest, MastersOfNarrowParametersAreThoseOfFp32Parameters) {
  for (const at::ScalarType type : {torch::kBFloat16, torch::kFloat16}) {
    for (const Rule& rule : kRules) {
      Rank narrow(options_of(rule), 0, 1, type);
      Rank wide(options_of(rule), 0, 1);
      const double norm = [&] {
        narrow.set_gradients(1);
        return narrow.optimizer().squared_grad_norm().item<double>();
      }();
      wide.set_gradients(1);
      if (type == torch::kBFloat16) {
        EXPECT_NEAR(norm, wide.optimizer().squared_grad_norm().item<double>(), 1e-12 * norm);
      }
      narrow.run(1, 5);
      wide.run(1, 5);
      const auto states = narrow.states();
      for (const auto& [name, expected] : wide.own_parameters()) {
        const at::Tensor& master = states.at("master/" + name);
        if (type == torch::kBFloat16) { // in fp16 the smallest of these gradients are rounded
          EXPECT_TRUE(torch::equal(master, expected)) << narrow.optimizer().rule().name() << ' ' << name;
        }
        EXPECT_TRUE(torch::equal(narrow.own_parameters().at(name), master.to(type))) << name;
      }
      EXPECT_EQ(wide.states().count("master/p700"), 0u);
    }
  }
}

TEST(FlatOptimizerTest, ShardsHaveTheBitsOfTheWhole) {
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    for (const StateType state_type : {StateType::fp32, StateType::bf16}) {
      for (const Rule& rule : kRules) {
        if (is_lamb(rule)) {
          continue;
        }
        for (const int size : {2, 3}) {
          Rank whole(options_of(rule, state_type), 0, 1, type);
          whole.run(1, 5);
          std::map<std::string, at::Tensor> parameters, states;
          run_ranks(size, options_of(rule, state_type), type, [&](Rank& rank) {
            add(parameters, rank.own_parameters());
            add(states, rank.states());
          });
          for (const auto& [name, expected] : whole.own_parameters()) {
            EXPECT_TRUE(torch::equal(parameters.at(name), expected)) << name << " on " << size;
          }
          for (const auto& [name, expected] : whole.states()) {
            EXPECT_TRUE(torch::equal(states.at(name), expected)) << name << " on " << size;
          }
        }
      }
    }
  }
}

TEST(FlatOptimizerTest, LambsNormsAreThoseOfWholeParametersThatLieOnSeveralRanks) {
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    Rank whole(options_of(LambOptions{}), 0, 1, type);
    whole.run(1, 5);
    for (const int size : {2, 3, 4}) {
      std::map<std::string, at::Tensor> states, parameters;
      run_ranks(size, options_of(LambOptions{}), type, [&](Rank& rank) {
        add(states, rank.states());
        add(parameters, rank.own_parameters());
      });
      // Sums in double in another order: at most the last bit of a trust ratio differs.
      const auto expected = type == torch::kFloat32 ? whole.own_parameters() : whole.states();
      for (const auto& [name, tensor] : expected) {
        const at::Tensor& ours = type == torch::kFloat32 ? parameters.at(name) : states.at(name);
        EXPECT_LE((ours - tensor).abs().max().item<double>(), 1e-6 * tensor.abs().max().item<double>())
            << name << " on " << size;
      }
    }
  }
}

/// A parameter that is left out stays, bit for bit, and its states with it; the others step as if it were not there.
/// Whatever the shards.
TEST(FlatOptimizerTest, WhatIsLeftOutStaysAsItIs) {
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    for (const StateType state_type : {StateType::fp32, StateType::bf16, StateType::int8}) {
      for (const Rule& rule : kRules) {
        if (is_lamb(rule) && state_type == StateType::int8) {
          continue;
        }
        Rank all(options_of(rule, state_type), 0, 1, type);
        Rank some(options_of(rule, state_type), 0, 1, type);
        all.run(1, 2);
        some.run(1, 2);
        const auto parameters = some.own_parameters();
        const auto states = some.states();
        all.run(3, 3);
        some.begin(3);
        some.optimizer().leave_out(0, {false, false, true, false, true}); // p333 and p40
        some.optimizer().prepare();
        some.step_all();
        const std::string what = concat(some.optimizer().rule().name(), ' ', name(state_type), ' ', type);
        for (const auto& [name, tensor] : some.own_parameters()) {
          const bool left_out = name == "p333" || name == "p40";
          EXPECT_TRUE(torch::equal(tensor, (left_out ? parameters : all.own_parameters()).at(name)))
              << what << ' ' << name;
        }
        const auto stepped = all.states();
        for (const auto& [name, tensor] : some.states()) {
          const bool left_out = name.ends_with("/p333") || name.ends_with("/p40");
          EXPECT_TRUE(torch::equal(tensor, (left_out ? states : stepped).at(name))) << what << ' ' << name;
        }
        some.run(4, 4); // only of that one step
        EXPECT_FALSE(torch::equal(some.own_parameters().at("p333"), parameters.at("p333"))) << what;
      }
    }
  }
}

// Rows of one element each. Those of the step are as if all had been stepped, the others as if none.
TEST(FlatOptimizerTest, SingleRowsAreSteppedAsInAWholeStep) {
  const std::vector<int64_t> rows = {0, 7, 8, 331};
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    for (const Rule& rule : kRules) {
      if (is_lamb(rule)) {
        continue;
      }
      Rank all(options_of(rule), 0, 1, type);
      Rank some(options_of(rule), 0, 1, type);
      all.run(1, 2);
      some.run(1, 2);
      const auto parameters = some.own_parameters();
      const auto states = some.states();
      all.run(3, 3);
      some.begin(3);
      some.optimizer().step_rows(0, 2, torch::tensor(rows)); // of p333
      some.step_all();
      const std::string what = concat(some.optimizer().rule().name(), ' ', type);
      const auto expected = [&](at::Tensor before, const at::Tensor& stepped, const std::string& name) {
        if (!name.ends_with("p333")) {
          return stepped;
        }
        for (const int64_t row : rows) {
          before[row] = stepped[row];
        }
        return before;
      };
      const auto all_parameters = all.own_parameters();
      for (const auto& [name, tensor] : some.own_parameters()) {
        EXPECT_TRUE(torch::equal(tensor, expected(parameters.at(name).clone(), all_parameters.at(name), name)))
            << what << ' ' << name;
      }
      const auto all_states = all.states();
      for (const auto& [name, tensor] : some.states()) {
        EXPECT_TRUE(torch::equal(tensor, expected(states.at(name).clone(), all_states.at(name), name)))
            << what << ' ' << name;
      }
      some.begin(4);
      some.optimizer().step_rows(0, 2, torch::empty({0}, torch::kInt64)); // none
      some.step_all();
      all.run(4, 4);
      EXPECT_TRUE(torch::equal(some.own_parameters().at("p333")[7], all_parameters.at("p333")[7])) << what;
      EXPECT_TRUE(torch::equal(some.own_parameters().at("p40"), all.own_parameters().at("p40"))) << what;
    }
  }
  for (const auto& options : {options_of(LambOptions{}), options_of(AdamOptions{}, StateType::int8)}) {
    Rank rank(options, 0, 1);
    EXPECT_THROW(rank.optimizer().step_rows(0, 2, torch::tensor(rows)), Error);
  }
}

TEST(FlatOptimizerTest, EachParameterHasItsWeightDecayAndItsLr) {
  for (const Rule& rule : kRules) {
    const auto parameters_with = [&](const FlatOptimizer::OptionsOf& options, double lr = 0.01) {
      bucket::NamedTensors parameters;
      for (const int64_t n : {70, 1, 333, 2500, 40}) {
        parameters.emplace_back(concat("p", n),
                                (torch::arange(n).to(torch::kFloat32) - 7).div_(100).set_requires_grad(true));
      }
      bucket::FlatParameters flat(parameters, {}, allocate);
      FlatOptimizer optimizer({&flat}, options, options_of(rule));
      for (int step = 0; step < 3; ++step) {
        for (int64_t i = 0; i < flat.count(); ++i) {
          flat.attach_zero_grad(i);
          flat.parameter(i).mutable_grad().fill_(0.01 * (step + 1));
        }
        optimizer.begin_step(lr, std::nullopt, 1);
        optimizer.prepare();
        for (size_t b = 0; b < flat.layout().buckets().size(); ++b) {
          optimizer.step_bucket(0, static_cast<int64_t>(b));
        }
      }
      std::map<std::string, at::Tensor> found;
      for (int64_t i = 0; i < flat.count(); ++i) {
        found[flat.name(i)] = flat.parameter(i).detach().clone();
      }
      return found;
    };
    const auto with = parameters_with([](const bucket::TensorInfo&) { return ParameterOptions{0.1}; });
    const auto without = parameters_with([](const bucket::TensorInfo&) { return ParameterOptions{0.0}; });
    for (const auto& [name, tensor] : parameters_with(
             [](const bucket::TensorInfo& t) { return ParameterOptions{t.numel() % 2 == 0 ? 0.1 : 0.0}; })) {
      EXPECT_TRUE(torch::equal(tensor, (tensor.numel() % 2 == 0 ? with : without).at(name)))
          << name << " rule " << rule.index();
      EXPECT_TRUE(tensor.numel() == 1 || !torch::equal(with.at(name), without.at(name)))
          << "LAMB steps a single number by its sign";
    }
    const auto fast = parameters_with([](const bucket::TensorInfo&) { return ParameterOptions{0.1}; }, 0.02);
    for (const auto& [name, tensor] : parameters_with(
             [](const bucket::TensorInfo& t) { return ParameterOptions{0.1, t.numel() % 2 == 0 ? 2.0 : 1.0}; })) {
      EXPECT_TRUE(torch::equal(tensor, (tensor.numel() % 2 == 0 ? fast : with).at(name)))
          << name << " rule " << rule.index();
      EXPECT_FALSE(torch::equal(fast.at(name), with.at(name)));
    }
  }
}

// The root of square_avg - grad_avg^2: rounded to fewer bits, the difference is negative where a gradient is steady.
TEST(FlatOptimizerTest, CenteredRmspropNeedsWholeStates) {
  for (const StateType type : {StateType::bf16, StateType::int8}) {
    OptimizerOptions options = options_of(RmspropOptions{.momentum = 0.9}, type);
    EXPECT_NO_THROW(make_optimizer(options));
    std::get<RmspropOptions>(options.rule).centered = true;
    EXPECT_THROW(make_optimizer(options), InputError);
  }
}

TEST(FlatOptimizerTest, LambSaysWhatIsMissing) {
  const auto message = [](auto f) -> std::string {
    try {
      f();
    } catch (const Error& error) {
      return error.what();
    }
    return "done";
  };
  Rank alone(options_of(LambOptions{}), 0, 1);
  alone.run(1, 1);
  alone.begin(2);
  EXPECT_THAT(message([&] { alone.step_all(); }), HasSubstr("lamb: step_bucket() before prepare()"));
  Rank one_of_two(options_of(LambOptions{}), 0, 2);
  one_of_two.begin(1);
  EXPECT_THAT(message([&] { one_of_two.optimizer().prepare(); }), HasSubstr("needs sum_over()"));
}

// A pipeline stage may train nothing.
TEST(FlatOptimizerTest, NothingToStepIsNoError) {
  FlatOptimizer optimizer(
      {}, [](const bucket::TensorInfo&) { return ParameterOptions{}; }, options_of(LambOptions{}), /*sharded=*/true);
  optimizer.begin_step(0.1, std::nullopt, 1);
  optimizer.prepare();
  EXPECT_EQ(optimizer.squared_grad_norm().item<double>(), 0);
}

TEST(FlatOptimizerTest, ResumedIsUninterrupted) {
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    for (const StateType state_type : {StateType::fp32, StateType::bf16, StateType::int8}) {
      for (const Rule& rule : kRules) {
        if (is_lamb(rule) && state_type == StateType::int8) {
          continue;
        }
        const OptimizerOptions options = options_of(rule, state_type);
        Rank first(options, 0, 1, type);
        first.run(1, 4);
        auto saved = first.states();
        const auto again = first.states();
        for (const auto& [name, tensor] : saved) {
          EXPECT_TRUE(torch::equal(tensor, again.at(name))) << "reading changes nothing";
          EXPECT_EQ(tensor.scalar_type(),
                    state_type == StateType::bf16 && !name.starts_with("master") ? torch::kBFloat16 : torch::kFloat32);
        }
        const auto parameters = first.own_parameters();
        first.run(5, 8);

        Rank second(options, 0, 1, type);
        for (int64_t i = 0; i < second.flat().count(); ++i) {
          const torch::NoGradGuard no_grad;
          second.flat().parameter(i).copy_(parameters.at(second.flat().name(i)));
        }
        second.load_states(saved);
        second.optimizer().set_steps(4);
        second.run(5, 8);
        expect_same_values(second, first, name(state_type));
      }
    }
  }
}

TEST(FlatOptimizerTest, CountsItsBytes) {
  for (const auto& [state_type, type, bytes] :
       std::vector<std::tuple<StateType, at::ScalarType, double>>{{StateType::fp32, torch::kFloat32, 8},
                                                                  {StateType::bf16, torch::kFloat32, 4},
                                                                  {StateType::int8, torch::kFloat32, 2 + 8 / 256.0},
                                                                  {StateType::fp32, torch::kBFloat16, 12},
                                                                  {StateType::int8, torch::kBFloat16, 6 + 8 / 256.0}}) {
    Rank rank(options_of(AdamOptions{}, state_type), 0, 1, type);
    const int64_t before = rank.optimizer().bytes();
    rank.run(1, 1);
    EXPECT_EQ(rank.optimizer().bytes(), before) << "a step allocates nothing";
    const auto numel = static_cast<double>(rank.flat().layout().numel());
    const auto blocks_begun = static_cast<double>(rank.flat().layout().buckets().size()) * 2 * 4;
    EXPECT_GE(static_cast<double>(rank.optimizer().bytes()), bytes * numel);
    EXPECT_LE(static_cast<double>(rank.optimizer().bytes()), bytes * numel + blocks_begun);
  }
}

TEST(FlatOptimizerTest, RefreshedMastersAreTheParameters) {
  Rank rank(options_of(AdamOptions{}), 0, 1, torch::kBFloat16);
  rank.run(1, 2);
  {
    const torch::NoGradGuard no_grad;
    rank.flat().parameter(0).fill_(3);
  }
  rank.optimizer().refresh_masters();
  EXPECT_TRUE(torch::equal(rank.states().at("master/p700"), torch::full({700}, 3.0)));
}

TEST(FlatOptimizerTest, MastersFollowParametersUntilTheFirstStep) {
  Rank rank(options_of(AdamOptions{}), 0, 1, torch::kBFloat16);
  const auto fill = [&](double value) {
    const torch::NoGradGuard no_grad;
    rank.flat().parameter(0).fill_(value);
  };
  fill(3);
  EXPECT_TRUE(torch::equal(rank.states().at("master/p700"), torch::full({700}, 3.0)));
  fill(5);
  rank.run(1, 1);
  EXPECT_NEAR(rank.states().at("master/p700").mean().item<double>(), 5, 0.1);
}

TEST(FlatOptimizerTest, GapsStayZero) {
  for (const Rule& rule : kRules) {
    Rank rank(options_of(rule), 0, 1, torch::kBFloat16);
    rank.run(1, 3);
    double outside = rank.flat().flat_data().to(torch::kFloat64).abs().sum().item<double>();
    for (int64_t i = 0; i < rank.flat().count(); ++i) {
      outside -= rank.flat().parameter(i).detach().to(torch::kFloat64).abs().sum().item<double>();
    }
    EXPECT_NEAR(outside, 0, 1e-9);
  }
}

// Two spirals, a network of 2-64-64-1: not separable by less than a few hundred steps of learning.
double trained_loss(StateType state_type, const Rule& rule) {
  torch::manual_seed(5);
  const int64_t n = 256;
  const at::Tensor turn = torch::rand({n}).sqrt() * 9;
  const at::Tensor label = torch::arange(n) % 2;
  const at::Tensor angle = turn + label * M_PI;
  const at::Tensor x = torch::stack({turn * torch::cos(angle), turn * torch::sin(angle)}, 1) / 5;
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64), torch::nn::Tanh(),
                            torch::nn::Linear(64, 1));
  bucket::NamedTensors parameters;
  for (const auto& item : net->named_parameters()) {
    parameters.emplace_back(item.key(), item.value());
  }
  bucket::FlatParameters flat(parameters, {}, allocate);
  FlatOptimizer optimizer(
      {&flat}, [](const bucket::TensorInfo&) { return ParameterOptions{0.0}; }, options_of(rule, state_type));
  double last = 0;
  for (int step = 0; step < 600; ++step) {
    flat.clear_grads();
    const at::Tensor loss =
        torch::binary_cross_entropy_with_logits(net->forward(x).squeeze(1), label.to(torch::kFloat32));
    loss.backward();
    for (int64_t i = 0; i < flat.count(); ++i) {
      flat.attach_grad(i);
    }
    optimizer.begin_step(std::holds_alternative<LionOptions>(rule) ? 1e-3 : 5e-3, std::nullopt, 1);
    for (size_t b = 0; b < flat.layout().buckets().size(); ++b) {
      optimizer.step_bucket(0, static_cast<int64_t>(b));
    }
    last = loss.item<double>();
  }
  return last;
}

TEST(FlatOptimizerTest, NarrowStatesLearnAsFp32StatesDo) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1); // thousands of small steps: on a busy machine threads would wait for each other
  for (const Rule& rule : {Rule(AdamOptions{}), Rule(LionOptions{})}) {
    const bool is_adam = std::holds_alternative<AdamOptions>(rule);
    const double wide = trained_loss(StateType::fp32, rule);
    ASSERT_LT(wide, 0.1);
    for (const StateType type : {StateType::bf16, StateType::int8}) {
      const double narrow = trained_loss(type, rule);
      RecordProperty(concat(is_adam ? "adam " : "lion ", name(type)), std::to_string(narrow));
      RecordProperty(is_adam ? "adam" : "lion", std::to_string(wide));
      EXPECT_LT(narrow, 1.5 * wide + 0.01) << name(type);
    }
  }
  at::set_num_threads(threads);
}

} // namespace
} // namespace trireme::optim
