#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/precision/autocast.h>
#include <trireme/precision/cast.h>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

namespace trireme::precision {
namespace {

namespace fs = std::filesystem;

at::Tensor product() {
  return torch::mm(torch::ones({2, 2}), torch::ones({2, 2}));
}

bool untouched() {
  return !at::autocast::is_autocast_enabled(at::kCPU) && product().scalar_type() == at::kFloat;
}

TEST(AutocastTest, ActsInItsBlockOnly) {
  ASSERT_TRUE(untouched());
  {
    const Autocast autocast;
    EXPECT_EQ(product().scalar_type(), at::kBFloat16);
    EXPECT_EQ(torch::mse_loss(product(), product()).scalar_type(), at::kFloat) << "not safe in bf16";
  }
  EXPECT_TRUE(untouched());
}

TEST(AutocastTest, GuardsNest) {
  const Autocast outer(Type::bf16);
  {
    const Autocast inner(Type::fp16);
    EXPECT_EQ(product().scalar_type(), at::kHalf);
    {
      const Autocast island(Type::bf16, at::kCPU, /*enabled=*/false);
      EXPECT_EQ(product().scalar_type(), at::kFloat);
    }
    EXPECT_EQ(product().scalar_type(), at::kHalf);
  }
  EXPECT_EQ(product().scalar_type(), at::kBFloat16);
}

TEST(AutocastTest, AnExceptionLeavesNothingBehind) {
  const at::ScalarType before = at::autocast::get_autocast_dtype(at::kCPU);
  try {
    const Autocast autocast(Type::fp16);
    throw Error("test", "something");
  } catch (const Error&) {
  }
  EXPECT_TRUE(untouched());
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), before);
}

TEST(AutocastTest, DevicesAreSetOneByOne) {
  const Autocast on_cuda(Type::fp16, at::kCUDA); // the setting alone needs no card
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCUDA));
  EXPECT_TRUE(untouched());
}

TEST(AutocastTest, OtherThreadsKeepTheirs) {
  const Autocast autocast;
  bool there = false;
  std::thread([&] { there = untouched(); }).join();
  EXPECT_TRUE(there);
}

TEST(AutocastTest, RefusesWhatCannotBe) {
  EXPECT_THROW(Autocast(Type::fp32), InputError);
  EXPECT_THROW(Autocast(Type::bf16, at::kMeta), InputError);
  EXPECT_TRUE(untouched());
}

TEST(AutocastTest, WeightsAreCastOnceABlockAndAnewInTheNext) {
  const at::Tensor weight = torch::ones({4, 4}, torch::requires_grad());
  const at::Tensor x = torch::ones({1, 4});
  const auto forward = [&] {
    const Autocast autocast;
    const at::Tensor first = at::linear(x, weight);
    {
      const Autocast nested; // must not throw the outer block's casts away
      at::linear(x, weight);
    }
    return at::linear(first.to(at::kFloat), weight).sum();
  };
  EXPECT_EQ(forward().item<double>(), 64);
  {
    const torch::NoGradGuard no_grad;
    weight.mul_(2); // what an optimizer does
  }
  const at::Tensor loss = forward();
  EXPECT_EQ(loss.item<double>(), 256) << "a stale cast would give 64";
  loss.backward();
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(weight.grad().sum().item<double>(), 256);
}

constexpr int64_t kLayers = 2;
constexpr int64_t kHidden = 32;
constexpr int64_t kHeads = 4;

// The GPT of reference_autocast.py, operation by operation. (torch::nn::Linear adds its bias after the product,
// Python's within it.)
struct GptImpl : torch::nn::Module {
  explicit GptImpl(const fs::path& file) {
    const auto weights = checkpoint::Safetensors::open(file);
    for (const auto& info : weights.tensors()) {
      const bool transposed = info.name.find(".h.") != std::string::npos && info.shape.size() == 2; // Conv1D's layout
      const at::Tensor weight = weights.tensor(info.name);
      register_parameter(id(info.name), transposed ? weight.t().contiguous() : weight.clone());
    }
  }
  static std::string id(std::string name) {
    std::replace(name.begin(), name.end(), '.', '/'); // a module's names have no dots
    return name;
  }
  at::Tensor weight(const std::string& name) { return named_parameters()[id(name)]; }
  at::Tensor fc(const at::Tensor& x, const std::string& name) {
    return at::linear(x, weight(name + ".weight"), weight(name + ".bias"));
  }
  at::Tensor norm(const at::Tensor& x, const std::string& name) {
    return at::layer_norm(x, {kHidden}, weight(name + ".weight"), weight(name + ".bias"), 1e-5);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    const int64_t B = tokens.size(0);
    const int64_t T = tokens.size(1);
    const auto heads = [&](const at::Tensor& t) { return t.view({B, T, kHeads, kHidden / kHeads}).transpose(1, 2); };
    at::Tensor x =
        at::embedding(weight("transformer.wte.weight"), tokens) + weight("transformer.wpe.weight").slice(0, 0, T);
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string p = concat("transformer.h.", i, '.');
      const auto qkv = fc(norm(x, p + "ln_1"), p + "attn.c_attn").split(kHidden, 2);
      const at::Tensor y =
          at::scaled_dot_product_attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), {}, 0.0, /*is_causal=*/true);
      x = x + fc(y.transpose(1, 2).reshape({B, T, kHidden}), p + "attn.c_proj");
      x = x + fc(at::gelu(fc(norm(x, p + "ln_2"), p + "mlp.c_fc"), "tanh"), p + "mlp.c_proj");
    }
    return at::linear(norm(x, "transformer.ln_f"), weight("transformer.wte.weight"));
  }
};

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.view({-1, logits.size(-1)}), targets.reshape({-1}));
}

// The same operations on the same machine: the same bits, forward and backward.
void expect_equal(const checkpoint::Safetensors& expected, GptImpl& gpt, const at::Tensor& logits,
                  const at::Tensor& loss) {
  const auto compare = [&](const std::string& name, const at::Tensor& found) {
    const at::Tensor wanted = expected.tensor(name);
    EXPECT_TRUE(found.to(at::kFloat).equal(wanted))
        << name << " differs by up to " << (found - wanted).abs().max().item<double>();
  };
  compare("logits", logits);
  compare("loss", loss.reshape({1}));
  loss.backward();
  for (const char* name :
       {"transformer.wte.weight", "transformer.h.0.attn.c_attn.weight", "transformer.h.1.ln_2.bias"}) {
    compare(name, gpt.weight(name).grad());
  }
}

TEST(AutocastTest, AGptIsPythonsBitForBit) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_autocast_", ::getpid());
  fs::create_directories(folder);
  const std::string command =
      concat("\"" + test::python() + "\" \"" + test::source_dir() + "/tests/precision/reference_autocast.py\" ",
             folder.string());
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  for (const auto& [type, file] :
       {std::pair(Type::bf16, "bf16.safetensors"), std::pair(Type::fp16, "fp16.safetensors")}) {
    SCOPED_TRACE(file);
    GptImpl gpt(folder / "model.safetensors");
    const auto given = checkpoint::Safetensors::open(folder / file);
    at::Tensor logits;
    at::Tensor loss;
    {
      const Autocast autocast(type);
      logits = gpt.forward(given.tensor("tokens"));
      loss = loss_of(logits, given.tensor("targets"));
    }
    EXPECT_EQ(logits.scalar_type(), scalar_type(type));
    expect_equal(given, gpt, logits, loss);
  }
  GptImpl gpt(folder / "model.safetensors");
  cast_module(gpt, Type::bf16);
  const auto given = checkpoint::Safetensors::open(folder / "whole_bf16.safetensors");
  const at::Tensor logits = gpt.forward(given.tensor("tokens"));
  EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
  expect_equal(given, gpt, logits, loss_of(logits, given.tensor("targets")));
  fs::remove_all(folder);
}

} // namespace
} // namespace trireme::precision
