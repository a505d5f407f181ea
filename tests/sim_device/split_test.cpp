// What ranks exchange inside a model, on the simulated device: attention over the tokens of several ranks, a BERT with
// key padding, joined logits, and a model that knows nothing of ranks. The bits of the CPU, without a race. (GPT in all
// layouts: engine_test.cpp.)
#include "engine_case.h"

#include <tests/parallel/context/whole.h>
#include <tests/parallel/tensor/ordinary_models.h>

#include <trireme/comm/recorder.h>
#include <trireme/models/bert_layers.h>
#include <trireme/parallel/tensor/linear.h>

#include <nlohmann/json.hpp>

namespace trireme::engine {
namespace {

using context::Kind;

// Forward and backward, both kinds: causal, all tokens, key padding, grouped queries, dropout.
TEST(SimDeviceSplit, AttentionOverTheTokensOfSeveralRanks) {
  const context::Case cases[] = {{.heads = 4, .kv_heads = 4},
                                 {.heads = 4, .kv_heads = 2, .type = at::kBFloat16},
                                 {.causal = false, .heads = 4, .kv_heads = 4, .padding = true},
                                 {.causal = false, .heads = 4, .kv_heads = 1}};
  for (const int ranks : {2, 4}) {
    on_both(ranks, [&cases](comm::World& world, at::Device device) {
      Seen seen;
      for (context::Case one : cases) {
        for (const Kind kind : {Kind::ring, Kind::ulysses}) {
          for (const double dropout : {0.0, 0.3}) {
            one.kind = kind;
            context::Inputs in = context::make_inputs(one, world.size());
            for (at::Tensor* tensor : {&in.q, &in.k, &in.v, &in.dout, &in.padding}) {
              *tensor = tensor->defined() ? tensor->to(device) : *tensor;
            }
            const context::Results found = context::shared_attention(in, one, world.group(), dropout);
            for (const at::Tensor& tensor : {found.out, found.dq, found.dk, found.dv}) {
              seen.weights.push_back(tensor.cpu());
            }
          }
        }
      }
      return seen;
    });
  }
}

// Sequences of different lengths, with one token of each half to be guessed.
data::Batch gaps(int64_t first, int64_t samples, int64_t length) {
  constexpr int64_t kMaskToken = 30;
  const at::Tensor i = torch::arange(first, first + samples).unsqueeze(1), place = torch::arange(length).unsqueeze(0);
  const at::Tensor tokens = (place * (1 + i % 3) + i * 7) % kMaskToken;
  const at::Tensor asked = (place == 1 + i % 2).logical_or(place == length / 2), there = place < length - i % 3;
  return {
      {tokens.masked_fill(asked, kMaskToken), there}, {tokens.masked_fill(~asked, models::kIgnoredTarget)}, samples};
}

TEST(SimDeviceSplit, BertWithKeyPadding) {
  const Case cases[] = {{.name = "", .zero_stage = 1, .tensor = 2, .sequence_parallel = true},
                        {.name = "", .context = 2},
                        {.name = "", .zero_stage = 3, .context = 2, .context_kind = Kind::ulysses},
                        {.name = "", .stages = 2, .tensor = 2}};
  for (const Case& one : cases) {
    on_both(one.stages > 1 || one.zero_stage > 0 ? 4 : 2, [&one](comm::World& world, at::Device device) {
      models::BertOptions shape;
      shape.layers = 2;
      shape.hidden = 16;
      shape.heads = 4;
      shape.sequence_length = 8;
      shape.vocab_size = 31;
      const mesh::Mesh mesh = mesh_of(world, one);
      const models::ModelRanks ranks = ranks_of(one, mesh);
      InitializeOptions options = options_of(one, device, mesh);
      options.model.reset();
      options.loss = nullptr;
      pipeline::PipelineOptions stages;
      stages.stages = one.stages;
      options.pipeline = std::make_shared<pipeline::PipelineModule>(models::bert_layers(shape, ranks),
                                                                    models::bert_loss(shape, ranks), stages);
      options.training_data.reset();
      const auto engine = initialize(world, options).engine;
      Seen seen;
      int64_t first = 100 * engine->group().rank();
      for (int i = 0; i < kSteps; ++i) {
        step(*engine, [&] {
          engine->train_batch([&] { return gaps(std::exchange(first, first + 4), 4, shape.sequence_length); });
        });
        add_step(seen, *engine);
      }
      add_weights(seen, *engine);
      return seen;
    });
  }
}

TEST(SimDeviceSplit, EvaluationAndJoinedLogits) {
  const Case cases[] = {{.name = "", .tensor = 2, .sequence_parallel = true},
                        {.name = "", .context = 2},
                        {.name = "", .context = 2, .context_kind = Kind::ulysses}};
  for (const Case& one : cases) {
    on_both(2, [&one](comm::World& world, at::Device device) {
      const mesh::Mesh mesh = mesh_of(world, one);
      models::Gpt model(small_gpt(), ranks_of(one, mesh));
      InitializeOptions options = options_of(one, device, mesh);
      options.model = model.ptr();
      options.loss = [model](const data::Batch& batch) mutable { // a loss of one's own, over joined logits
        return at::cross_entropy_loss(model->forward(batch.input()).flatten(0, 1), batch.target().flatten());
      };
      const auto engine = initialize(world, options).engine;
      Seen seen = train(*engine, 2);
      data::DataLoader loader(std::make_shared<Counting>(), data::DistributedSampler(192, {}), 7);
      step(*engine, [&] { seen.numbers.push_back(engine->evaluate(loader, 3)); });
      const torch::NoGradGuard no_grad;
      seen.weights.push_back(model->forward(Counting().get(std::vector<int64_t>{3, 1, 4}).input().to(device)).cpu());
      return seen;
    });
  }
}

// In fp16 the first losses are scaled by far too much, and their gradients are not finite.
TEST(SimDeviceSplit, AModelThatKnowsNothingOfRanks) {
  const Case cases[] = {{.name = "zero0"},
                        {.name = "zero1", .zero_stage = 1},
                        {.name = "zero2", .zero_stage = 2},
                        {.name = "fp16", .type = precision::Type::fp16}};
  for (const Case& one : cases) {
    on_both(one.zero_stage == 0 ? 2 : 4, [&one](comm::World& world, at::Device device) {
      torch::manual_seed(5);
      test::TiedModel model(31, 16, 4, 0);
      InitializeOptions options = options_of(one, device);
      options.config.precision.loss_scale.initial_scale_power = 18;
      options.config.precision.loss_scale.hysteresis = 1;
      const std::string rules = R"({"autotp_size": 2, "tp_grain_size": 4, "partition_config": {"layer_specs": [
        {"patterns": [".*attention\\.[qkv]", ".*fc1"], "partition_type": "column"},
        {"patterns": [".*attention\\.out$", ".*fc2"], "partition_type": "row"},
        {"patterns": ["wte"], "partition_type": "vocabulary"}]}})";
      options.config.tensor_parallel =
          config::read_deepspeed(
              JsonNode::parse(concat(R"({"train_batch_size": 1, "tensor_parallel": )", rules, "}"), "test.json"))
              .tensor_parallel;
      options.model = model.ptr();
      options.loss = [model](const data::Batch& batch) mutable {
        return torch::nn::functional::cross_entropy(model->forward(batch.input()).flatten(0, 1),
                                                    batch.target().flatten());
      };
      const auto engine = initialize(world, options).engine;
      do {
        sim::reset_host_synchronisations();
        engine->train_batch();
        EXPECT_LE(sim::host_synchronisations(), device.is_cpu() ? 0 : 2)
            << "gradients are compared between the tensor ranks";
      } while (engine->skipped_steps() == engine->global_steps() && engine->global_steps() < 10);
      EXPECT_EQ(engine->skipped_steps() > 0, one.type == precision::Type::fp16);
      return train(*engine);
    });
  }
}

// [2, 512, 6144] in fp32, 24 MiB: whole on a device, in pieces of 341 rows on the host. Samples of 3 MiB: together on a
// device, alone on the host.
TEST(SimDeviceSplit, PiecesAreLargerThanOnTheHost) {
  on_both(2, [](comm::World& world, at::Device device) {
    const torch::NoGradGuard no_grad;
    Seen seen;
    const auto sent = [&](const at::Tensor& x, const at::Tensor& weight, const tensor::Ranks& ranks) {
      const size_t before = comm::Recorder::process().records().size();
      seen.weights.push_back(tensor::row_linear(x.to(device), weight.to(device), ranks).sum(0).cpu());
      return comm::Recorder::process().records().size() - before;
    };
    const at::Tensor x = torch::full({2, 512, 2}, 1.5 + world.rank()), weight = torch::ones({6144, 2});
    EXPECT_EQ(sent(x, weight, {world.group()}), device.is_cpu() ? 4 : 1);
    EXPECT_EQ(sent(x, weight.slice(0, 0, 1536), {world.group(), /*sequence_parallel=*/true}), device.is_cpu() ? 2 : 1);
    return seen;
  });
}

} // namespace
} // namespace trireme::engine
