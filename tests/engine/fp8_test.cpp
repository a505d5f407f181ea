// Training in FP8: an engine equals plain libtorch with the same layers, layouts equal one process, a resumed run
// equals an uninterrupted one, and losses stay near those of bf16.
#include "language_build.h"
#include "plain_bf16.h"

#include <trireme/base/log.h>
#include <trireme/models/adapters.h>
#include <trireme/models/bert.h>
#include <trireme/models/llama.h>
#include <trireme/parallel/tensor/layers.h>
#include <trireme/precision/cast.h>

#include <unistd.h>
#include <algorithm>
#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using fp8::Recipe;
using Kind = pipeline::ScheduleKind;
using test::on_ranks;
using testing::Contains;
using testing::HasSubstr;

constexpr Recipe kRecipes[] = {Recipe::tensorwise, Recipe::rowwise, Recipe::rowwise_with_gw_hp};

// Parts of two tensor ranks have sizes that are multiples of 16.
models::GptOptions wide_gpt() {
  models::GptOptions options = small_gpt();
  options.hidden = 32;
  options.heads = 4;
  return options;
}

models::LlamaOptions wide_llama() {
  models::LlamaOptions options;
  options.layers = 2;
  options.hidden = 32;
  options.heads = 4;
  options.kv_heads = 2;
  options.intermediate = 64;
  options.sequence_length = 8;
  options.vocab_size = 31;
  options.tie_embeddings = false; // lm_head is a layer of its own
  return options;
}

std::function<void(InitializeOptions&)> in_bf16(bool fp8, Recipe recipe = Recipe::tensorwise) {
  return [=](InitializeOptions& options) {
    options.config.precision.compute = precision::Type::bf16;
    options.config.precision.fp8 = {.enabled = fp8, .recipe = recipe};
  };
}

std::vector<double> losses_of(SplitRun& run, int steps) {
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    losses.push_back(run.step());
  }
  return losses;
}

// Layers are told to multiply in FP8 by hand.
std::vector<double> plain_fp8_losses(int steps, const fp8::Options& how, const models::GptOptions& shape) {
  models::Gpt model(shape);
  for (const auto& module : model->modules()) {
    if (auto* const layer = dynamic_cast<tensor::Fp8Layer*>(module.get())) {
      layer->multiply_in_fp8(std::make_shared<const fp8::Options>(how));
    }
  }
  return plain_bf16_losses(model, steps, kSplitBatch);
}

TEST(Fp8Test, OneRankEqualsPlainLibtorch) {
  on_ranks(1, [](comm::World& world) {
    for (const Recipe recipe : kRecipes) {
      SplitRun run(world, {}, {.shape = wide_gpt(), .options = in_bf16(true, recipe)});
      const std::vector<double> expected = plain_fp8_losses(6, {.enabled = true, .recipe = recipe}, wide_gpt());
      for (size_t step = 0; step < expected.size(); ++step) {
        EXPECT_NEAR(run.step(), expected[step], 2e-3 * expected[step]) << fp8::recipe_name(recipe) << ' ' << step;
      }
    }
  });
}

// Mean of the last losses relative to bf16's; every step is near, too.
void expect_near_bf16(const std::vector<double>& fp8, const std::vector<double>& bf16, const char* what) {
  double difference = 0, sum = 0;
  for (size_t step = 0; step < fp8.size(); ++step) {
    EXPECT_NEAR(fp8[step], bf16[step], 0.15 * bf16[step]) << what << ", step " << step;
    if (step + 10 >= fp8.size()) {
      difference += fp8[step] - bf16[step];
      sum += bf16[step];
    }
  }
  EXPECT_LT(std::abs(difference), 0.05 * sum) << what;
  EXPECT_NE(fp8, bf16) << what;
  EXPECT_LT(fp8.back(), 0.7 * fp8.front()) << what << ": it must train";
}

TEST(Fp8Test, LossesOfAGptStayNearBf16) {
  on_ranks(1, [](comm::World& world) {
    SplitRun bf16(world, {}, {.shape = wide_gpt(), .options = in_bf16(false)});
    SplitRun run(world, {}, {.shape = wide_gpt(), .options = in_bf16(true)});
    const std::vector<double> expected = losses_of(bf16, 50);
    expect_near_bf16(losses_of(run, 50), expected, "tensorwise");
  });
}

TEST(Fp8Test, LossesOfALlamaStayNearBf16) {
  on_ranks(1, [](comm::World& world) {
    SplitRun bf16(world, {}, language_build(wide_llama(), in_bf16(false)));
    SplitRun run(world, {}, language_build(wide_llama(), in_bf16(true, Recipe::rowwise_with_gw_hp)));
    const std::vector<double> expected = losses_of(bf16, 50);
    expect_near_bf16(losses_of(run, 50), expected, "rowwise_with_gw_hp");
  });
}

// Each rank's part has scales of its own, and sums are split: losses are near, not equal.
TEST(Fp8Test, TensorRanksAndPipelinesAreNearOneProcess) {
  const std::vector<SplitLayout> layouts = {
      {.tensor = 2},
      {.tensor = 2, .sequence_parallel = true},
      {.pipe = 2, .accumulation = 2, .schedule = Kind::zero_bubble},
  };
  for (const SplitLayout& layout : layouts) {
    on_ranks(2, [layout](comm::World& world) {
      for (const Recipe recipe : {Recipe::tensorwise, Recipe::rowwise}) {
        const std::vector<double> expected = plain_fp8_losses(10, {.enabled = true, .recipe = recipe}, wide_gpt());
        SplitRun run(world, layout, {.shape = wide_gpt(), .options = in_bf16(true, recipe)});
        for (size_t step = 0; step < expected.size(); ++step) {
          EXPECT_NEAR(run.step(), expected[step], 0.04 * expected[step])
              << fp8::recipe_name(recipe) << ", step " << step << ", " << layout.describe();
        }
      }
    });
  }
}

TEST(Fp8Test, ZeroStagesAndRecomputationHaveTheBitsOfStageZero) {
  on_ranks(2, [](comm::World& world) {
    const auto run_of = [&](int stage, bool recompute) {
      const auto change = [=](InitializeOptions& options) {
        in_bf16(true, Recipe::rowwise)(options);
        options.config.gradient_clipping = 0; // the norm is a sum in another order
        options.config.activations.policy = recompute ? activations::Way::recompute : activations::Way::keep;
      };
      SplitRun run(world, {.data = 2, .zero_stage = stage}, {.shape = wide_gpt(), .options = change});
      return losses_of(run, 6);
    };
    const std::vector<double> expected = run_of(0, false);
    for (const int stage : {1, 2, 3}) {
      EXPECT_EQ(run_of(stage, false), expected) << "stage " << stage;
    }
    EXPECT_EQ(run_of(0, true), expected);
    EXPECT_EQ(run_of(3, true), expected);
  });
}

// Scales are those of the values at hand, so there is no state to save.
TEST(Fp8Test, ResumesBitForBit) {
  on_ranks(1, [](comm::World& world) {
    const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_fp8_", ::getpid());
    for (const Recipe recipe : {Recipe::tensorwise, Recipe::rowwise}) {
      const SplitChanges changes{.shape = wide_gpt(), .options = in_bf16(true, recipe)};
      SplitRun whole(world, {}, changes);
      losses_of(whole, 2);
      whole.engine().save_checkpoint(folder);
      const std::vector<double> expected = losses_of(whole, 3);
      SplitRun again(world, {}, changes);
      ASSERT_TRUE(again.engine().load_checkpoint(folder));
      EXPECT_EQ(losses_of(again, 3), expected) << fp8::recipe_name(recipe);
      fs::remove_all(folder);
    }
  });
}

TEST(Fp8Test, AutocastKeepsFp32Parameters) {
  on_ranks(1, [](comm::World& world) {
    const auto change = [](bool fp8) {
      return [=](InitializeOptions& options) {
        options.config.precision.autocast = true;
        options.config.precision.fp8.enabled = fp8;
      };
    };
    SplitRun plain(world, {}, {.shape = wide_gpt(), .options = change(false)});
    SplitRun run(world, {}, {.shape = wide_gpt(), .options = change(true)});
    EXPECT_EQ(run.module().parameters()[0].scalar_type(), at::kFloat);
    const std::vector<double> losses = losses_of(run, 10), expected = losses_of(plain, 10);
    for (size_t step = 0; step < losses.size(); ++step) {
      EXPECT_NEAR(losses[step], expected[step], 0.05 * expected[step]);
    }
    EXPECT_NE(losses, expected);
  });
}

TEST(Fp8Test, AdaptersTrainBesideFrozenWeightsInFp8) {
  on_ranks(1, [](comm::World& world) {
    models::LlamaOptions shape = wide_llama();
    shape.lora.rank = 4;
    shape.lora.alpha = 8;
    shape.lora.layers = {"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"};
    const auto change = [](bool fp8) {
      return [=](InitializeOptions& options) {
        in_bf16(fp8)(options);
        for (const auto& item : options.model->named_parameters()) {
          item.value().set_requires_grad(models::is_adapter(item.key()));
        }
      };
    };
    SplitRun bf16(world, {}, language_build(shape, change(false)));
    SplitRun run(world, {}, language_build(shape, change(true)));
    const at::Tensor frozen = run.module().named_parameters()["model.layers.0.self_attn.q_proj.weight"].clone();
    const at::Tensor adapter = run.module().named_parameters()["model.layers.1.mlp.down_proj.lora_B.weight"].clone();
    const std::vector<double> expected = losses_of(bf16, 10), losses = losses_of(run, 10);
    for (size_t step = 0; step < losses.size(); ++step) {
      EXPECT_NEAR(losses[step], expected[step], 0.03 * expected[step]);
    }
    EXPECT_FALSE(run.module().named_parameters()["model.layers.1.mlp.down_proj.lora_B.weight"].equal(adapter));
    EXPECT_TRUE(run.module().named_parameters()["model.layers.0.self_attn.q_proj.weight"].equal(frozen));
  });
}

// Queries, keys, values and the three dense layers: each of them alone changes the result a little.
TEST(Fp8Test, EveryLayerOfABertBlockMultipliesInFp8) {
  models::BertOptions options;
  options.hidden = 32;
  options.heads = 4;
  options.dropout = 0;
  models::BertBlock block(options, models::ModelRanks(), 0);
  precision::cast_module(*block, precision::Type::bf16);
  const at::Tensor x = torch::randn({2, 8, 32}).to(at::kBFloat16), mask = torch::ones({2, 8}, at::kLong);
  const auto result = [&] { return block->forward(x, mask).first.to(at::kFloat); };
  const at::Tensor expected = result();
  int layers = 0;
  for (const auto& item : block->named_modules()) {
    if (auto* const layer = dynamic_cast<tensor::Fp8Layer*>(item.value().get())) {
      layer->multiply_in_fp8(std::make_shared<const fp8::Options>());
      const at::Tensor y = result();
      EXPECT_FALSE(y.equal(expected)) << item.key();
      EXPECT_LT((y - expected).norm().item<double>(), 0.05 * expected.norm().item<double>()) << item.key();
      layer->multiply_in_fp8(nullptr);
      ++layers;
    }
  }
  EXPECT_EQ(layers, 6);
  EXPECT_TRUE(result().equal(expected));
}

std::vector<std::string> lines_of(const std::function<void()>& f) {
  std::vector<std::string> lines;
  log::set_sink([&](const std::string& line) { lines.push_back(line); });
  f();
  log::set_sink(nullptr);
  return lines;
}

// Seven layers in each of two blocks; the head stays in bf16.
TEST(Fp8Test, TheStartSaysWhatRunsInFp8) {
  on_ranks(1, [](comm::World& world) {
    const auto with_filter = [](std::vector<std::string> filter) {
      return [=](InitializeOptions& options) {
        in_bf16(true)(options);
        options.config.precision.fp8.filter_fqns = filter;
      };
    };
    const auto lines = [&](const models::LanguageOptions& shape, const SplitLayout& layout,
                           const std::function<void(InitializeOptions&)>& change) {
      return lines_of([&] { SplitRun(world, layout, language_build(shape, change)); });
    };
    EXPECT_THAT(
        lines(wide_llama(), {}, in_bf16(true)),
        Contains(HasSubstr("fp8 \"tensorwise\": 14 of 15 linear layers multiply in FP8, emulated on this device "
                           "(cpu)")));
    EXPECT_THAT(lines(wide_llama(), {}, with_filter({"lm_head", "layers.1.", "down_proj"})),
                Contains(HasSubstr("6 of 15 linear layers")));
    models::LlamaOptions odd = wide_llama();
    odd.intermediate = 40;
    EXPECT_THAT(lines(odd, {}, in_bf16(true)), Contains(HasSubstr("8 of 15 linear layers")));
    EXPECT_THROW(SplitRun(world, {}, language_build(wide_llama(), with_filter({"proj", "lm_head"}))), InputError);
  });
  on_ranks(2, [](comm::World& world) {
    const auto lines =
        lines_of([&] { SplitRun(world, {.pipe = 2, .accumulation = 2}, language_build(wide_llama(), in_bf16(true))); });
    EXPECT_EQ(
        std::ranges::count_if(
            lines, [](const std::string& line) { return line.find("14 of 15 linear layers") != std::string::npos; }),
        world.rank() == 0 ? 1 : 0);
  });
}

// Of 33 columns one rank has 17, the other 16: neither multiplies them in FP8, or their exchanges would differ. What is
// left are queries and the output of attention.
TEST(Fp8Test, TensorRanksAgreeOnTheirLayers) {
  on_ranks(2, [](comm::World& world) {
    models::LlamaOptions odd = wide_llama();
    odd.intermediate = 33;
    const SplitLayout layout{.tensor = 2, .sequence_parallel = true};
    const auto train = [&](bool fp8) {
      SplitRun run(world, layout, language_build(odd, in_bf16(fp8)));
      return losses_of(run, 3);
    };
    std::vector<double> in_fp8;
    const auto lines = lines_of([&] { in_fp8 = train(true); });
    EXPECT_EQ(std::ranges::count_if(lines, [](const auto& line) { return line.find("4 of 15") != std::string::npos; }),
              world.rank() == 0 ? 1 : 0);
    const std::vector<double> in_bf16 = train(false);
    for (size_t i = 0; i < in_bf16.size(); ++i) {
      EXPECT_NEAR(in_fp8[i], in_bf16[i], 0.05 * in_bf16[i]) << i;
    }
  });
}

TEST(Fp8Test, TheNextEngineOfAModelTellsItsLayersAnew) {
  on_ranks(1, [](comm::World& world) {
    models::Gpt model(wide_gpt());
    const auto layers_in_fp8 = [&](bool fp8, std::vector<std::string> filter) {
      InitializeOptions options;
      options.model = model.ptr();
      options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
      options.config = zero_config(0, 1, 1);
      in_bf16(fp8)(options);
      options.config.precision.fp8.filter_fqns = std::move(filter);
      const auto engine = initialize(world, options).engine;
      return std::ranges::count_if(model->modules(), [](const auto& module) {
        const auto* const layer = dynamic_cast<const tensor::Fp8Layer*>(module.get());
        return layer != nullptr && layer->fp8() != nullptr;
      });
    };
    EXPECT_EQ(layers_in_fp8(true, {"lm_head"}), 8);
    EXPECT_EQ(layers_in_fp8(true, {"lm_head", "h.0."}), 4);
    EXPECT_EQ(layers_in_fp8(false, {"lm_head"}), 0);
  });
}

TEST(Fp8Test, ProductsOfOtherTypesAreRefused) {
  on_ranks(1, [](comm::World& world) {
    for (const precision::Type type : {precision::Type::fp32, precision::Type::fp16}) {
      const auto change = [=](InitializeOptions& options) {
        options.config.precision.compute = type;
        options.config.precision.fp8.enabled = true;
      };
      try {
        SplitRun run(world, {}, {.shape = wide_gpt(), .options = change});
        ADD_FAILURE() << "accepted";
      } catch (const InputError& error) {
        EXPECT_THAT(error.what(), HasSubstr(concat("fp8 with products in ", precision::type_name(type))));
      }
    }
  });
}

} // namespace
} // namespace trireme::engine
