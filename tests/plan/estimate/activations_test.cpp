// Formulas against what libtorch's allocator hands out.
#include "allocated.h"

#include <trireme/base/error.h>
#include <trireme/models/cnn.h>
#include <trireme/models/gpt.h>
#include <trireme/models/gpt_layers.h>
#include <trireme/parallel/pipeline/split_backward.h>
#include <trireme/parallel/tensor/fp8_layer.h>
#include <trireme/plan/estimate/activations.h>
#include <trireme/plan/estimate/model.h>
#include <trireme/precision/cast.h>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <unordered_set>

namespace trireme::estimate {
namespace {

struct Measured {
  int64_t parameters;
  int64_t kept;
  int64_t most;
};

template <typename Model>
Measured measure(Model& model, const at::Tensor& input, const at::Tensor& target) {
  Measured measured{};
  for (const at::Tensor& parameter : model->parameters()) {
    measured.parameters += parameter.numel();
  }
  model->train();
  for (int round = 0; round < 2; ++round) { // the first one also makes what stays
    for (at::Tensor& parameter : model->parameters()) {
      parameter.mutable_grad() = at::Tensor();
    }
    const Allocated allocated;
    const at::Tensor loss = model->loss(input, target);
    measured.kept = allocated.now();
    loss.backward();
    measured.most = allocated.most();
  }
  return measured;
}

int64_t kept_bytes(const Model& model) {
  int64_t sum = model.loss_kept;
  for (const Layer& layer : model.layers) {
    sum += layer.kept;
  }
  return sum;
}

void expect_near(int64_t estimated, int64_t measured, double tolerance, const std::string& what) {
  EXPECT_NEAR(static_cast<double>(estimated), static_cast<double>(measured), tolerance * static_cast<double>(measured))
      << what;
}

struct ActivationCase {
  models::GptOptions options;
  Type type;
  double kept_tolerance;
};

models::GptOptions options(int64_t layers, int64_t hidden, int64_t length, int64_t vocabulary, bool tied,
                           double dropout = 0) {
  models::GptOptions o;
  o.layers = layers;
  o.hidden = hidden;
  o.heads = hidden / 32;
  o.sequence_length = length;
  o.vocab_size = vocabulary;
  o.tie_embeddings = tied;
  o.dropout = dropout;
  return o;
}

TEST(ActivationsTest, OfGpt) {
  const ActivationCase cases[] = {
      {options(3, 128, 64, 300, true), Type::fp32, 0.01},      {options(3, 128, 64, 300, false), Type::fp32, 0.01},
      {options(2, 64, 256, 2000, true), Type::fp32, 0.01},     {options(3, 128, 64, 300, true), Type::bf16, 0.01},
      {options(3, 128, 64, 300, true, 0.1), Type::fp32, 0.03}, {options(2, 64, 256, 300, true, 0.1), Type::fp32, 0.03},
  };
  for (const ActivationCase& c : cases) {
    const std::string what =
        concat(c.options.layers, " layers, hidden ", c.options.hidden, ", length ", c.options.sequence_length,
               ", dropout ", c.options.dropout, ", ", type_name(c.type));
    constexpr int64_t kSamples = 4;
    models::Gpt gpt_module(c.options);
    if (c.type == Type::bf16) {
      precision::cast_module(*gpt_module, precision::Type::bf16);
    }
    const at::Tensor tokens =
        torch::randint(c.options.vocab_size, {kSamples, c.options.sequence_length}, torch::kInt64);
    const Measured measured = measure(gpt_module, tokens, tokens);
    estimate::Run run;
    run.model = gpt({c.options.layers, c.options.hidden, c.options.heads, c.options.sequence_length,
                     c.options.vocab_size, c.options.tie_embeddings, c.options.dropout},
                    {kSamples, c.type, false, false});
    run.precision.compute = c.type;
    run.bounds = {0, std::ssize(run.model.layers)};
    EXPECT_EQ(run.model.parameters(), measured.parameters) << what;
    expect_near(kept_bytes(run.model), measured.kept, c.kept_tolerance, what + ": kept");
    // Gradients that stay until the end of backward belong to the gradients; the estimate's peak has no more than one
    // layer's.
    const int64_t estimated = activations_of(run, 0).bytes;
    EXPECT_GT(static_cast<double>(estimated),
              0.9 * static_cast<double>(measured.most - bytes_of(c.type) * measured.parameters))
        << what;
    EXPECT_LT(static_cast<double>(estimated), 1.1 * static_cast<double>(measured.most)) << what;
  }
}

// Factors of products in FP8 are copied, in fp32 too where the CPU emulates them.
TEST(ActivationsTest, OfGptInFp8) {
  const models::GptOptions cases[] = {options(3, 128, 64, 300, true), options(2, 64, 256, 300, false)};
  for (const models::GptOptions& o : cases) {
    constexpr int64_t kSamples = 4;
    models::Gpt gpt_module(o);
    precision::cast_module(*gpt_module, precision::Type::bf16);
    for (auto& block : *gpt_module->transformer->h) {
      for (const auto& module : block->modules()) {
        if (auto* const layer = dynamic_cast<tensor::Fp8Layer*>(module.get())) {
          layer->multiply_in_fp8(std::make_shared<const fp8::Options>(fp8::Options{.enabled = true}));
        }
      }
    }
    const at::Tensor tokens = torch::randint(o.vocab_size, {kSamples, o.sequence_length}, torch::kInt64);
    const Measured measured = measure(gpt_module, tokens, tokens);
    estimate::Run run;
    run.model = gpt(o, {.samples = kSamples, .type = Type::bf16, .fp8 = true});
    run.precision.compute = Type::bf16;
    run.bounds = {0, std::ssize(run.model.layers)};
    const std::string what = concat("hidden ", o.hidden, ", length ", o.sequence_length);
    expect_near(kept_bytes(run.model), measured.kept, 0.02, what + ": kept");
    const auto estimated = static_cast<double>(activations_of(run, 0).bytes);
    EXPECT_GT(estimated, 0.9 * static_cast<double>(measured.most - 2 * measured.parameters)) << what;
    EXPECT_LT(estimated, 1.1 * static_cast<double>(measured.most)) << what;
    const Model plain = gpt(o, {.samples = kSamples, .type = Type::bf16});
    EXPECT_GT(run.model.layers[2].working, plain.layers[2].working);
  }
}

TEST(ActivationsTest, OfCnn) {
  models::CnnOptions o;
  o.width = 16;
  models::Cnn cnn_module(o);
  constexpr int64_t kSamples = 32;
  const Measured measured =
      measure(cnn_module, torch::randn({kSamples, 1, 28, 28}), torch::randint(10, {kSamples}, torch::kInt64));
  const Model model = cnn({o.channels, o.side, o.classes, o.width, o.dropout}, {kSamples, Type::fp32, false, false});
  EXPECT_EQ(model.parameters(), measured.parameters);
  expect_near(kept_bytes(model) - model.layers.front().input, measured.kept, 0.05,
              "kept, without the images, which are the loader's");
}

// The last stage of a zero-bubble pipeline between the two halves of a backward: two blocks, norm, head and loss.
TEST(ActivationsTest, BetweenTheHalvesOfABackward) {
  const ActivationCase cases[] = {
      {options(2, 128, 64, 300, false), Type::fp32, 0.02},
      {options(2, 64, 256, 2000, false), Type::fp32, 0.02},
      {options(2, 128, 64, 300, false), Type::bf16, 0.02},
      {options(2, 128, 64, 300, false, 0.1), Type::fp32, 0.05},
  };
  for (const ActivationCase& c : cases) {
    const std::string what = concat("hidden ", c.options.hidden, ", length ", c.options.sequence_length, ", dropout ",
                                    c.options.dropout, ", ", type_name(c.type));
    constexpr int64_t kSamples = 4;
    const int64_t H = c.options.hidden;
    torch::nn::Sequential stage(models::GptBlock(c.options), models::GptBlock(c.options),
                                torch::nn::LayerNorm(torch::nn::LayerNormOptions({H})),
                                torch::nn::Linear(torch::nn::LinearOptions(H, c.options.vocab_size).bias(false)));
    if (c.type == Type::bf16) {
      precision::cast_module(*stage, precision::Type::bf16);
    }
    std::vector<pipeline::NodePtr> accumulators;
    std::unordered_set<torch::autograd::Node*> nodes;
    for (const at::Tensor& parameter : stage->parameters()) {
      accumulators.push_back(torch::autograd::impl::grad_accumulator(parameter));
      nodes.insert(accumulators.back().get());
    }
    const at::Tensor x = torch::randn({kSamples, c.options.sequence_length, H})
                             .to(stage->parameters().front().scalar_type())
                             .requires_grad_();
    const at::Tensor target =
        torch::randint(c.options.vocab_size, {kSamples, c.options.sequence_length}, torch::kInt64);
    int64_t measured = 0;
    for (int round = 0; round < 2; ++round) { // the first one also makes what stays
      x.mutable_grad() = at::Tensor();
      const Allocated allocated;
      at::Tensor loss = models::token_loss({stage->forward(x)}, {target});
      const at::Tensor one = torch::ones_like(loss);
      pipeline::SplitBackward split({torch::autograd::impl::gradient_edge(loss)}, {one}, {x}, nodes);
      loss.reset();
      split.run_inputs();
      ASSERT_TRUE(split.puts_off()) << what;
      measured = allocated.now();
    }
    const Model described = gpt(c.options, {kSamples, c.type, false, /*layer_list=*/true});
    int64_t estimated = described.loss_kept;
    for (auto layer = described.layers.begin() + 2; layer != described.layers.end();
         ++layer) { // behind the embeddings; the last gradient is that of the input
      estimated += layer->kept + layer->put_off;
    }
    expect_near(estimated, measured, c.kept_tolerance, what);
  }
}

} // namespace
} // namespace trireme::estimate
