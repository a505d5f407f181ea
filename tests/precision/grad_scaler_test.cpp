#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/precision/autocast.h>
#include <trireme/precision/grad_scaler.h>

#include <tests/support/folders.h>
#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <limits>

namespace trireme::precision {
namespace {

using test::error_of;
using testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();

// The hash of reference_grad_scaler.py.
float value(int64_t step, int64_t i) {
  const uint64_t bits = (static_cast<uint64_t>(step * 7919 + i * 104729 + 12345) * 2654435761u) % (uint64_t{1} << 32);
  return static_cast<float>(static_cast<double>(bits >> 9) / (1 << 22) - 1);
}

at::Tensor values(int64_t step, int64_t n) {
  at::Tensor out = torch::empty({n});
  for (int64_t i = 0; i < n; ++i) {
    out[i] = value(step, i);
  }
  return out;
}

double bad_value(const std::string& what) {
  return what == "nan" ? std::numeric_limits<double>::quiet_NaN() : what == "inf" ? kInf : -kInf;
}

GradScalerOptions options_of(const nlohmann::json& from) {
  GradScalerOptions options;
  options.init_scale = from["init_scale"];
  options.growth_factor = from["growth_factor"];
  options.backoff_factor = from["backoff_factor"];
  options.growth_interval = from["growth_interval"];
  return options;
}

struct Trained {
  at::Tensor weight;
  std::unique_ptr<torch::optim::SGD> optimizer;
};

TEST(GradScalerTest, EqualsPythonsBitForBit) {
  const auto reference =
      nlohmann::json::parse(read_file(test::source_dir() + "/tests/precision/reference_grad_scaler.json"));
  const auto n = reference["size"].get<int64_t>();
  for (const auto& one : reference["cases"]) {
    SCOPED_TRACE(one["init_scale"].dump());
    GradScaler scaler(options_of(one));
    std::vector<Trained> trained;
    for (int64_t o = 0; o < one["optimizers"].get<int64_t>(); ++o) {
      const at::Tensor weight = values(o, n).requires_grad_();
      trained.push_back({weight, std::make_unique<torch::optim::SGD>(std::vector{weight},
                                                                     torch::optim::SGDOptions(0.125).momentum(0.5))});
    }
    for (int64_t step = 0; step < reference["steps"].get<int64_t>(); ++step) {
      SCOPED_TRACE(step);
      const nlohmann::json& expected = one["after"][step];
      if (step == 30) {
        const nlohmann::json saved = nlohmann::json::parse(scaler.state().dump());
        scaler = GradScaler();
        scaler.load_state(saved);
      }
      for (size_t o = 0; o < trained.size(); ++o) {
        auto& [weight, optimizer] = trained[o];
        optimizer->zero_grad();
        scaler.scale((weight * values(step + 100 * (static_cast<int64_t>(o) + 1), n)).mean()).backward();
        for (const auto& bad : one["bad"]) {
          if (bad[0] == step && bad[1] == o) {
            weight.mutable_grad()[step % n] = bad_value(bad[2]);
          }
        }
        if (step % 3 == 0) {
          scaler.unscale_(*optimizer);
        }
        ASSERT_EQ(scaler.step(*optimizer), expected["stepped"][o].get<bool>());
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(weight[i].item<double>(), expected["weights"][o][i].get<double>());
        }
      }
      if (step == 25) {
        scaler.update(512);
      } else {
        scaler.update();
      }
      ASSERT_EQ(scaler.state(), expected["state"]);
    }
  }
}

TEST(GradScalerTest, ALossOfFp16IsScaledBeyondFp16) {
  GradScaler scaler;
  const at::Tensor loss = torch::tensor(2.0, torch::kHalf);
  EXPECT_EQ(scaler.scale(loss).item<double>(), 131072) << "as in Python: the result is fp32";
  const auto both = scaler.scale({torch::tensor(1.0), torch::tensor(3.0)});
  EXPECT_EQ(both[1].item<double>(), 3 * 65536);
}

TEST(GradScalerTest, DisabledItDoesNothing) {
  GradScalerOptions options;
  options.enabled = false;
  GradScaler scaler(options);
  const at::Tensor weight = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD optimizer({weight}, 0.5);
  scaler.scale(weight.sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  EXPECT_EQ(weight[0].item<double>(), 0.5);
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_EQ(scaler.state(), nlohmann::json::object());
  scaler.load_state({{"scale", "nonsense"}});
}

TEST(GradScalerTest, CallsInTheWrongOrderSayWhatToDo) {
  GradScaler scaler;
  const at::Tensor weight = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD optimizer({weight}, 0.5);
  EXPECT_THAT(error_of([&] { scaler.step(optimizer); }),
              HasSubstr("before scale(). Call scaler.scale(loss).backward() first"));
  EXPECT_THAT(error_of([&] { scaler.update(); }), HasSubstr("update() without unscale_() or step()"));
  const at::Tensor scaled = scaler.scale(weight.sum());
  EXPECT_THAT(error_of([&] { scaler.step(optimizer); }),
              HasSubstr("none of the optimizer's parameters has a gradient"));
  scaled.backward();
  scaler.unscale_(optimizer);
  EXPECT_THAT(error_of([&] { scaler.unscale_(optimizer); }), HasSubstr("unscale_() twice"));
  scaler.step(optimizer);
  EXPECT_THAT(error_of([&] { scaler.unscale_(optimizer); }), HasSubstr("unscale_() after step()"));
  EXPECT_THAT(error_of([&] { scaler.step(optimizer); }), HasSubstr("step() twice"));
  scaler.update();
  weight.mutable_grad() = at::Tensor();
  const at::Tensor half = torch::ones({2}, torch::dtype(torch::kHalf).requires_grad(true));
  torch::optim::SGD in_half({half}, 0.5);
  scaler.scale(half.sum()).backward();
  EXPECT_THAT(error_of([&] { scaler.step(in_half); }), HasSubstr("a gradient of shape [2] is fp16"));
}

TEST(GradScalerTest, NonsenseIsRefusedAndChangesNothing) {
  GradScalerOptions options;
  options.growth_factor = 1;
  EXPECT_THAT(error_of([&] { GradScaler scaler(options); }), HasSubstr("growth_factor must be > 1, got 1"));
  GradScaler scaler;
  EXPECT_THAT(error_of([&] { scaler.set_backoff_factor(1.5); }), HasSubstr("backoff_factor must be between 0 and 1"));
  EXPECT_THAT(error_of([&] { scaler.set_growth_interval(0); }), HasSubstr("growth_interval must be >= 1"));
  EXPECT_THAT(error_of([&] { scaler.update(kInf); }), HasSubstr("the new scale must be a positive number"));
  const nlohmann::json good = scaler.state();
  EXPECT_EQ(good["backoff_factor"], 0.5);
  for (const auto& [key, value] : good.items()) {
    for (const nlohmann::json& bad : {nlohmann::json(), nlohmann::json("x"), nlohmann::json(-1)}) {
      nlohmann::json state = good;
      state[key] = bad;
      EXPECT_THROW(scaler.load_state(state), InputError) << state;
      EXPECT_EQ(scaler.state(), good);
    }
  }
  EXPECT_THAT(error_of([&] { scaler.load_state(nlohmann::json::object()); }), HasSubstr("enabled = false"));
}

TEST(GradScalerTest, SparseGradientsAreUnscaled) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  torch::optim::SGD optimizer(table->parameters(), 1.0);
  const at::Tensor before = table->weight.detach().clone();
  GradScaler scaler;
  scaler.scale(table->forward(torch::tensor({1, 3, 1})).sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(table->weight.grad().to_dense().equal(
      torch::tensor({{0., 0.}, {2., 2.}, {0., 0.}, {1., 1.}, {0., 0.}}, torch::kFloat32)));
  table->weight.mutable_grad()._values()[0][0] = kInf; // after the check: too late to be seen
  scaler.update();
}

TEST(GradScalerTest, AllRanksSkipTogether) {
  test::on_ranks(3, [](comm::World& world) {
    const comm::Group group = world.group();
    GradScalerOptions options;
    options.growth_interval = 2;
    GradScaler scaler(options, group);
    const at::Tensor weight = torch::ones({3}, torch::requires_grad());
    torch::optim::SGD optimizer({weight}, 0.25);
    const std::vector<bool> steps = {true, false, true, true, false, true};
    std::vector<double> scales;
    for (size_t i = 0; i < steps.size(); ++i) {
      optimizer.zero_grad();
      const bool idle = i == 2 && world.rank() == 0; // no gradient here in this step
      const at::Tensor scaled = scaler.scale(weight.sum());
      if (!idle) {
        scaled.backward();
      }
      if (!steps[i] && world.rank() == static_cast<int>(i) % 3) {
        weight.mutable_grad()[1] = kInf;
      }
      EXPECT_EQ(scaler.step(optimizer), steps[i]) << "step " << i;
      scaler.update();
      scales.push_back(scaler.get_scale());
    }
    EXPECT_THAT(scales, testing::ElementsAre(65536, 32768, 32768, 65536, 32768, 32768));
    EXPECT_EQ(weight[0].item<double>(), world.rank() == 0 ? 0.25 : 0.0);
  });
}

TEST(GradScalerTest, TrainsUnderFp16AutocastWhereUnscaledGradientsVanish) {
  const auto train = [](bool scaling) {
    torch::manual_seed(3);
    torch::nn::Linear model(8, 8);
    GradScalerOptions options;
    options.enabled = scaling;
    GradScaler scaler(options);
    torch::optim::SGD optimizer(model->parameters(), 1e5);
    const at::Tensor x = torch::randn({16, 8});
    double last = 0;
    for (int i = 0; i < 40; ++i) {
      optimizer.zero_grad();
      at::Tensor loss;
      {
        const Autocast autocast(Type::fp16);
        loss = (model->forward(x).to(torch::kFloat32) - x).square().mean() * 1e-6;
      }
      scaler.scale(loss).backward();
      scaler.step(optimizer);
      scaler.update();
      last = loss.item<double>() * 1e6;
    }
    return last;
  };
  const double with = train(true);
  EXPECT_LT(with, 0.5 * train(false)) << "gradients of 1e-8 are 0 in fp16";
}

} // namespace
} // namespace trireme::precision
