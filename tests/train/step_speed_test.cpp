// What a run says of its GPU's products, and its speed beside the GPU's peak.
#include <trireme/train/step_speed.h>

#include <trireme/precision/tf32.h>

#include <ATen/Context.h>
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

namespace trireme::train {
namespace {

using device::ProductType;
using testing::HasSubstr;
using testing::Not;

TEST(StepSpeedTest, ProductsFollowThePrecision) {
  precision::PrecisionOptions options;
  EXPECT_EQ(product_type(options, true), ProductType::tf32);
  EXPECT_EQ(product_type(options, false), ProductType::fp32);
  options.autocast = true;
  EXPECT_EQ(product_type(options, true), ProductType::half);
  options = {};
  options.compute = precision::Type::bf16;
  EXPECT_EQ(product_type(options, false), ProductType::half);
}

TEST(StepSpeedTest, SaysWhatBf16WouldGainWhereItIsKnown) {
  const auto h100 = device::peak_of_card("NVIDIA H100 80GB HBM3"), a30 = device::peak_of_card("NVIDIA A30");
  EXPECT_THAT(describe_products(ProductType::tf32, h100), HasSubstr("up to 2.0 times as fast here"));
  EXPECT_THAT(describe_products(ProductType::fp32, h100), HasSubstr("up to 14.8 times as fast here"));
  EXPECT_THAT(describe_products(ProductType::fp32, a30), HasSubstr("training.tf32=true"));
  EXPECT_THAT(describe_products(ProductType::tf32, std::nullopt), Not(HasSubstr("bf16")));
  EXPECT_EQ(describe_products(ProductType::half, h100), "");
}

TEST(StepSpeedTest, LibtorchIsTold) {
  for (const bool allowed : {true, false}) {
    precision::allow_tf32(allowed);
    EXPECT_EQ(at::globalContext().allowTF32CuBLAS(), allowed);
    EXPECT_EQ(at::globalContext().allowTF32CuDNN(), allowed);
  }
}

/// GPT-2, 124M.
models::TransformerShape gpt2() {
  models::TransformerShape shape;
  shape.layers = 12;
  shape.hidden = 768;
  shape.heads = 12;
  shape.sequence_length = 1024;
  shape.vocab_size = 50257;
  return shape;
}

TEST(StepSpeedTest, OperationsOfATokenAreTheFormulas) {
  const double matrices = 12 * 12 * 768. * 768 + 50257 * 768., attention = 6 * 12 * 768. * 1024;
  EXPECT_EQ(operations_per_token(gpt2(), 1), 6 * matrices + attention);
  EXPECT_EQ(operations_per_token(gpt2(), 0), 4 * matrices + attention);
  models::TransformerShape bert = gpt2();
  bert.family = models::TransformerShape::Family::bert;
  EXPECT_EQ(operations_per_token(bert, 1), 6 * matrices + 2 * attention);
}

TEST(StepSpeedTest, AStepIsTimedFromTheEndOfTheLastOne) {
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  StepSpeed speed;
  speed.compare("NVIDIA H100 80GB HBM3", ProductType::half, {.shape = gpt2(), .tokens_of_step = 1e6, .ranks = 8});
  wait();
  const auto begin = std::chrono::steady_clock::now();
  speed.begin(); // what came before is no step
  monitor::StepMetrics first, second;
  speed.end(first, 10, 100);
  wait();
  speed.end(second, 10, 0);
  const std::chrono::duration<double, std::milli> both = std::chrono::steady_clock::now() - begin;
  EXPECT_LE(*first.step_ms + *second.step_ms, both.count());
  EXPECT_GE(*second.step_ms, 20);
  EXPECT_NEAR(*first.tokens_per_s, 1000 / (*first.step_ms / 1e3), 1e-6 * *first.tokens_per_s);
  EXPECT_NEAR(*second.samples_per_s, 10 / (*second.step_ms / 1e3), 1e-6 * *second.samples_per_s);
  EXPECT_FALSE(second.tokens_per_s);
  const double at_peak = 1e6 * operations_per_token(gpt2(), 1) / (989.4e12 * 8);
  EXPECT_NEAR(*second.mfu, at_peak / (*second.step_ms / 1e3), 1e-9 * *second.mfu);

  for (const char* card : {"", "a GPU that nobody knows"}) {
    StepSpeed unknown;
    unknown.compare(card, ProductType::half, {.shape = gpt2(), .tokens_of_step = 1e6});
    monitor::StepMetrics metrics;
    unknown.end(metrics, 1, 1);
    EXPECT_FALSE(metrics.mfu);
  }
}

TEST(StepSpeedTest, OnlyModelsOfTokensHaveAShape) {
  config::ModelConfig model;
  model.gpt.vocab_size = 0;
  EXPECT_EQ(computed_shape(model, 300)->vocab_size, 300);
  model.gpt.vocab_size = 77;
  EXPECT_EQ(computed_shape(model, 300)->vocab_size, 77);
  model.kind = config::ModelConfig::Kind::bert;
  EXPECT_EQ(computed_shape(model, 300)->vocab_size, 258);
  model.bert.head = models::BertOptions::Head::classes;
  EXPECT_EQ(computed_shape(model, 300)->vocab_size, 0) << "no logits of the vocabulary";
  model.kind = config::ModelConfig::Kind::cnn;
  EXPECT_FALSE(computed_shape(model, 300));
  EXPECT_EQ(card_name(at::kCPU), "");
}

} // namespace
} // namespace trireme::train
