#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/models/gpt.h>
#include <trireme/models/gpt2_weights.h>
#include <trireme/precision/autocast.h>
#include <trireme/precision/cast.h>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

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
    EXPECT_EQ(torch::softmax(product(), 0).scalar_type(), at::kFloat) << "not safe in bf16";
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

class PythonTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::path(testing::TempDir()) / concat("trireme_autocast_", ::getpid());
    fs::create_directories(folder_);
    const std::string command =
        concat(TRIREME_SOURCE_DIR "/.venv/bin/python " TRIREME_SOURCE_DIR "/tests/precision/reference_autocast.py ", folder_.string());
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  static void TearDownTestSuite() {
    fs::remove_all(folder_);
  }

  static models::Gpt model() {
    models::GptOptions options;
    options.layers = 2;
    options.hidden = 32;
    options.heads = 4;
    options.sequence_length = 16;
    options.vocab_size = 64;
    options.tie_embeddings = true;
    models::Gpt made(options);
    models::load_gpt2(made, folder_ / "model.safetensors");
    return made;
  }

  // The same operations on the same machine: the same bits.
  static void expect_equal(models::Gpt& gpt, const std::string& file, const at::Tensor& logits, const at::Tensor& loss) {
    const auto expected = checkpoint::Safetensors::open(folder_ / file);
    EXPECT_TRUE(logits.to(at::kFloat).equal(expected.tensor("logits")))
        << (logits.to(at::kFloat) - expected.tensor("logits")).abs().max().item<double>();
    EXPECT_EQ(loss.item<double>(), expected.tensor("loss").item<double>());
    loss.backward();
    for (const char* name : {"transformer.wte.weight", "transformer.h.0.attn.c_attn.weight", "transformer.h.1.ln_2.bias"}) {
      const at::Tensor grad = gpt->named_parameters()[name].grad().to(at::kFloat);
      EXPECT_TRUE(grad.equal(expected.tensor(name))) << name << ' ' << (grad - expected.tensor(name)).abs().max().item<double>();
    }
  }

  static fs::path folder_;
};
fs::path PythonTest::folder_;

TEST_F(PythonTest, AGptUnderAutocastIsPythons) {
  for (const auto& [type, file] : {std::pair(Type::bf16, "bf16.safetensors"), std::pair(Type::fp16, "fp16.safetensors")}) {
    SCOPED_TRACE(file);
    models::Gpt gpt = model();
    const auto given = checkpoint::Safetensors::open(folder_ / file);
    at::Tensor logits;
    at::Tensor loss;
    {
      const Autocast autocast(type);
      logits = gpt->forward(given.tensor("tokens"));
      loss = at::cross_entropy_loss(logits.view({-1, logits.size(-1)}), given.tensor("targets").reshape({-1}));
    }
    EXPECT_EQ(logits.scalar_type(), scalar_type(type));
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    expect_equal(gpt, file, logits, loss);
  }
}

TEST_F(PythonTest, AGptInBfloat16IsPythons) {
  models::Gpt gpt = model();
  cast_module(*gpt, Type::bf16);
  const auto given = checkpoint::Safetensors::open(folder_ / "whole_bf16.safetensors");
  const at::Tensor logits = gpt->forward(given.tensor("tokens"));
  const at::Tensor loss = at::cross_entropy_loss(logits.view({-1, logits.size(-1)}), given.tensor("targets").reshape({-1}));
  EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
  expect_equal(gpt, "whole_bf16.safetensors", logits, loss);
}

} // namespace
} // namespace trireme::precision
