// Models that generate::load() splits among ranks, from runs, Hugging Face folders and adapters, are those of one rank.
#include "small_training.h"

#include <tests/support/run_ranks.h>

#include <trireme/checkpoint/safetensors.h>
#include <trireme/generate/load.h>
#include <trireme/generate/sample.h>
#include <trireme/generate/weight_types.h>
#include <trireme/parallel/tensor/skip_init.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <utility>
#include <vector>

namespace trireme::tools {
namespace {

using generate::WeightType;
using test::on_ranks;
using Texts = std::vector<std::vector<int32_t>>;

class LoadRanksTest : public SmallTrainingTest {
 protected:
  LoadRanksTest() { folder(); } // this process's, not a rank's

  /// A run of `type`, exported to `to`.
  static void train_base(const std::string& type, const fs::path& to) {
    json run = common();
    run["model"].update({{"type", type}, {"layers", 2}, {"hidden", 48}, {"vocab_size", 61}});
    run["training"] = {{"steps", 2}, {"export", to}};
    on_ranks(1, [&](comm::World& world) { run_training(world, run); });
  }
  /// A run with adapters of the model in `from`, which are exported to `to`.
  static void train_adapter(const fs::path& from, const fs::path& to) {
    json run = common();
    run["model"] = {{"from", from}, {"sequence_length", 8}};
    run["training"] = {{"steps", 2}, {"lora", {{"rank", 2}, {"targets", "proj|c_fc|c_attn"}}}, {"export", to}};
    run["engine"]["optimizer"]["params"]["lr"] = 0.1;
    on_ranks(1, [&](comm::World& world) { run_training(world, run); });
  }
  /// Logits of 2 x 8 tokens, and greedy texts.
  static std::pair<at::Tensor, Texts> answers_of(const generate::Trained& trained, const comm::Group& ranks) {
    const c10::InferenceMode inference;
    generate::SampleOptions options;
    options.tokens = 10;
    options.choice.temperature = 0;
    return {trained.model.forward(at::arange(16).view({2, 8})),
            continue_prompts(trained.model, {{3, 1, 4}, {7}}, options, {}, ranks)};
  }
  static void expect_same_on_two_ranks(const std::vector<std::pair<fs::path, fs::path>>& models) {
    on_ranks(2, [&](comm::World& world) {
      at::set_num_threads(1); // small tensors
      for (const auto& [from, adapter] : models) {
        const generate::Trained one = generate::load(from, adapter);
        const generate::Trained part = generate::load(from, adapter, {.group = world.group()});
        EXPECT_EQ(part.step, one.step);
        for (const WeightType weights : {WeightType::same, WeightType::int8}) {
          SCOPED_TRACE(concat(from, ' ', adapter, weights == WeightType::int8 ? " int8" : ""));
          convert_weights(one.model, at::kFloat, weights);
          convert_weights(part.model, at::kFloat, weights, world.group());
          const auto [expected, texts] = answers_of(one, {});
          const auto [logits, texts_of_ranks] = answers_of(part, world.group());
          EXPECT_LT((logits - expected).abs().max().item<double>(), 1e-5);
          EXPECT_EQ(texts_of_ranks, texts);
        }
      }
    });
  }
};

TEST_F(LoadRanksTest, RunsFoldersAndAdaptersAreThoseOfOneRank) {
  for (const char* const type : {"llama", "gpt"}) {
    const fs::path base = folder() / concat(type, "-base"), adapter = folder() / concat(type, "-adapter");
    train_base(type, base);
    expect_same_on_two_ranks({{base, {}}, {out(), {}}});
    train_adapter(base, adapter);
    expect_same_on_two_ranks({{base, adapter}, {adapter, {}}, {out() / "checkpoints", {}}});
    on_ranks(1, [&](comm::World&) { // the adapters are not nothing
      const auto [logits, texts] = answers_of(generate::load(base, adapter), {});
      EXPECT_GT((logits - answers_of(generate::load(base), {}).first).abs().max().item<double>(), 1e-2);
    });
  }
}

TEST_F(LoadRanksTest, AnAdapterOfAnotherBaseIsRefusedByAllRanks) {
  const fs::path base = folder() / "one", other = folder() / "other", adapter = folder() / "adapter";
  train_base("llama", base);
  train_adapter(base, adapter);
  fs::copy(base, other);
  fs::remove(other / "model.safetensors");
  on_ranks(1, [&](comm::World&) {
    const auto file = checkpoint::Safetensors::open(base / "model.safetensors");
    std::vector<checkpoint::NamedTensor> tensors;
    for (const checkpoint::TensorInfo& tensor : file.tensors()) {
      tensors.push_back({tensor.name, file.tensor(tensor.name) * 1.05});
    }
    checkpoint::write_safetensors(other / "model.safetensors", tensors, file.metadata());
  });
  on_ranks(2, [&](comm::World& world) {
    EXPECT_THROW(generate::load(other, adapter, {.group = world.group()}), InputError);
    EXPECT_EQ(generate::load(base, adapter, {.group = world.group()}).step, std::nullopt);
  });
}

// torch::empty() gives NaN while algorithms are to be deterministic.
TEST_F(LoadRanksTest, NothingIsDrawnForWhatACheckpointHas) {
  train_base("llama", folder() / "base");
  on_ranks(1, [](comm::World&) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    models::LlamaOptions options;
    options.layers = 1;
    options.hidden = 16;
    options.heads = 2;
    options.vocab_size = 20;
    const auto drawn_in = [&](bool skips) {
      const tensor::SkipInit skip_init(skips);
      const models::LanguageModel model(options);
      int drawn = 0;
      for (const auto& item : model.module()->named_parameters()) {
        drawn += item.value().dim() == 2 && !item.value().isnan().all().item<bool>() ? 1 : 0;
      }
      return drawn;
    };
    EXPECT_GT(drawn_in(false), 7);
    EXPECT_EQ(drawn_in(true), 0);
    for (const auto& item : generate::load(out()).model.module()->named_parameters()) {
      EXPECT_TRUE(item.value().isfinite().all().item<bool>()) << item.key();
    }
  });
}

} // namespace
} // namespace trireme::tools
