// A model that is split among ranks continues texts as the whole one does.
#include <trireme/base/error.h>
#include <trireme/fused/int8.h>
#include <trireme/generate/sample.h>
#include <trireme/generate/weight_types.h>
#include <trireme/parallel/tensor/split_module.h>

#include <tests/support/run_ranks.h>

#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <torch/utils.h>

#include <csignal>
#include <limits>
#include <map>
#include <stdexcept>

namespace trireme::generate {
namespace {

using test::on_ranks;
using testing::ElementsAre;
using testing::HasSubstr;
using Texts = std::vector<std::vector<int32_t>>;

models::GptOptions split_gpt() {
  models::GptOptions options;
  options.layers = 2;
  options.hidden = 32;
  options.heads = 4;
  options.sequence_length = 16;
  options.vocab_size = 41; // ranks have 21 and 20 of them
  options.dropout = 0.1;
  return options;
}

models::LlamaOptions split_llama(int64_t kv_heads, bool tied) {
  models::LlamaOptions options;
  options.layers = 2;
  options.hidden = 32;
  options.heads = 4;
  options.kv_heads = kv_heads;
  options.intermediate = 48;
  options.sequence_length = 16;
  options.vocab_size = 40;
  options.tie_embeddings = tied;
  return options;
}

models::LanguageModel model_of(const models::LanguageOptions& options, const comm::Group& ranks) {
  models::ModelRanks split;
  split.tensor = {.group = ranks};
  torch::manual_seed(3); // all parameters are drawn in full on each rank
  models::LanguageModel model(options, split);
  model.module()->eval(); // no dropout
  return model;
}

SampleOptions most_likely(int64_t tokens) {
  SampleOptions options;
  options.tokens = tokens;
  options.choice.temperature = 0;
  return options;
}

const Texts kPrompts = {{3, 1, 4}, {7}, {2, 6, 5, 3, 5, 8, 9}, {}};

// Prompts of different lengths, beyond the model's positions too.
TEST(TensorRanksTest, TextsAreThoseOfOneRank) {
  on_ranks(2, [](comm::World& world) {
    const std::vector<std::pair<const char*, models::LanguageOptions>> all = {
        {"gpt", split_gpt()}, {"llama", split_llama(2, true)}, {"shared keys", split_llama(1, false)}};
    for (const auto& [name, options] : all) {
      for (const WeightType weights : {WeightType::same, WeightType::int8}) {
        SCOPED_TRACE(concat(name, weights == WeightType::int8 ? ", int8" : ""));
        const models::LanguageModel whole = model_of(options, {}), part = model_of(options, world.group());
        convert_weights(whole, at::kFloat, weights);
        convert_weights(part, at::kFloat, weights, world.group());
        size_t calls = 0;
        const auto count = [&](size_t, int32_t) { return ++calls == 0; };
        const Texts split = continue_prompts(part, kPrompts, most_likely(14), count, world.group());
        EXPECT_EQ(split, continue_prompts(whole, kPrompts, most_likely(14)));
        EXPECT_EQ(calls, world.rank() == 0 ? 4u * 14 : 0u);
      }
    }
  });
}

// Parts of the inputs begin and end inside groups of 64, which have one scale.
TEST(TensorRanksTest, Int8WeightsAreThoseOfOneRank) {
  on_ranks(2, [](comm::World& world) {
    models::LlamaOptions llama = split_llama(2, false);
    llama.heads = 6;
    llama.head_dim = 34;      // ranks have 102 inputs of o_proj
    llama.intermediate = 193; // and 97 and 96 of down_proj
    models::GptOptions gpt = split_gpt();
    gpt.hidden = 136;
    for (const models::LanguageOptions& options : {models::LanguageOptions(llama), models::LanguageOptions(gpt)}) {
      const models::LanguageModel whole = model_of(options, {}), part = model_of(options, world.group());
      const tensor::Placements split = tensor::placements_of(*part.module());
      EXPECT_THROW(convert_weights(model_of(options, world.group()), at::kFloat, WeightType::int8), InputError);
      std::map<std::string, std::vector<int64_t>> sizes;
      for (const auto& item : part.module()->named_parameters()) {
        sizes[item.key()] = item.value().sizes().vec();
      }
      convert_weights(whole, at::kFloat, WeightType::int8);
      convert_weights(part, at::kFloat, WeightType::int8, world.group());
      int inside = 0;
      for (const auto& item : part.module()->named_parameters()) {
        if (!fused::is_int8(item.value()) || !split.contains(item.value().unsafeGetTensorImpl())) {
          continue;
        }
        const at::Tensor all = fused::unpack_int8(whole.module()->named_parameters()[item.key()], at::kFloat);
        at::Tensor here = fused::unpack_int8(item.value(), at::kFloat);
        const int64_t zeros = here.size(1) - sizes[item.key()][1];
        inside += zeros > 0 ? 1 : 0;
        here = here.narrow(1, zeros, sizes[item.key()][1]);
        const bucket::Placement& placed = split.at(item.value().unsafeGetTensorImpl());
        EXPECT_TRUE(here.equal(tensor::box_of(all, placed, here.sizes()))) << item.key();
      }
      EXPECT_EQ(inside, world.rank() == 0 ? 0 : 2 * 2);
      const c10::InferenceMode inference;
      const at::Tensor tokens = at::arange(32).view({2, 16});
      EXPECT_LT((part.forward(tokens) - whole.forward(tokens)).abs().max().item<double>(), 1e-5);
    }
  });
}

// A rank that throws alone would leave the other one waiting.
TEST(TensorRanksTest, AWeightThatIsNotFiniteIsRefusedByAllRanks) {
  on_ranks(2, [](comm::World& world) {
    const models::LanguageModel part = model_of(split_llama(2, true), world.group());
    if (world.rank() == 1) {
      const torch::NoGradGuard no_grad;
      part.module()->named_parameters()["model.layers.0.mlp.down_proj.weight"].fill_(
          std::numeric_limits<float>::quiet_NaN());
    }
    EXPECT_THROW(convert_weights(part, at::kFloat, WeightType::int8, world.group()), InputError);
  });
}

// The seeds, options and ends of the others do not count.
TEST(TensorRanksTest, RankZeroChoosesForAll) {
  on_ranks(3, [](comm::World& world) {
    models::LlamaOptions llama = split_llama(0, true);
    llama.heads = 6;
    llama.head_dim = 6;
    const models::LanguageModel model = model_of(llama, world.group());
    SampleOptions options;
    options.tokens = 9;
    options.choice.temperature = 3;
    options.seed = 5 + world.rank();
    const auto ends = [](size_t prompt, int32_t) { return prompt == 1; };
    const Texts texts = continue_prompts(model, kPrompts, options, ends, world.group());
    EXPECT_EQ(texts[1].size(), 1u);
    at::Tensor first = torch::tensor(std::vector<int32_t>(texts[2]));
    const at::Tensor own = first.clone();
    world.group().broadcast(first, 0).wait();
    EXPECT_TRUE(torch::equal(own, first)) << own << first;
  });
}

TEST(TensorRanksTest, AFailureOfRankZeroEndsTheOthers) {
  on_ranks(2, [](comm::World& world) {
    const models::LanguageModel model = model_of(split_gpt(), world.group());
    model.module()->train();
    const auto fail = [](size_t, int32_t) -> bool { throw std::runtime_error("the pipe is closed"); };
    try {
      continue_prompts(model, kPrompts, most_likely(3), fail, world.group());
      ADD_FAILURE() << "nothing is thrown";
    } catch (const PeerError& error) {
      EXPECT_EQ(world.rank(), 1);
      EXPECT_THAT(error.what(), HasSubstr("rank 0 failed"));
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(world.rank(), 0);
      EXPECT_STREQ(error.what(), "the pipe is closed");
    }
    EXPECT_TRUE(model.module()->is_training());
  });
}

TEST(TensorRanksTest, ALostRankEndsTheOthers) {
  const std::vector<std::string> failed = test::run_ranks(2, [](comm::World& world) {
    const models::LanguageModel model = model_of(split_gpt(), world.group());
    continue_prompts(model, kPrompts, most_likely(2), {}, world.group());
    if (world.rank() == 1) {
      std::raise(SIGKILL);
    }
    EXPECT_THROW(continue_prompts(model, kPrompts, most_likely(2000), {}, world.group()), PeerError);
  });
  EXPECT_THAT(failed, ElementsAre(HasSubstr("rank 1")));
}

TEST(TensorRanksTest, HeadsThatRanksDoNotDivideAreRefused) {
  on_ranks(3, [](comm::World& world) {
    EXPECT_THROW(model_of(split_gpt(), world.group()), InputError);
    EXPECT_THROW(model_of(split_llama(2, true), world.group()), InputError);
  });
}

} // namespace
} // namespace trireme::generate
