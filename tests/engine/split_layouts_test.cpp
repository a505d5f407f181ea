// Layers split among tensor ranks, with pipelines, replicas and ZeRO: losses and gradient norms are those of one
// process and plain libtorch, and checkpoints of any layout continue in any other.
#include "split_run.h"

#include <trireme/checkpoint/manifest.h>

#include <nlohmann/json.hpp>

#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kBatch = kSplitBatch;

using Layout = SplitLayout;
using Kind = pipeline::ScheduleKind;

TEST(SplitLayoutsTest, TensorRanksAlone) {
  for (const int tensor : {2, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      expect_losses_of_one_process({.tensor = tensor, .sequence_parallel = sequence_parallel});
    }
  }
}

TEST(SplitLayoutsTest, WithReplicasAndZero) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool sequence_parallel : {false, true}) {
      expect_losses_of_one_process({.data = 2,
                                    .tensor = 2,
                                    .sequence_parallel = sequence_parallel,
                                    .zero_stage = stage,
                                    .accumulation = stage == 1 ? 2 : 1});
    }
  }
}

TEST(SplitLayoutsTest, WithPipelines) {
  expect_losses_of_one_process({.pipe = 2, .tensor = 2, .accumulation = 4});
  expect_losses_of_one_process(
      {.pipe = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 4, .schedule = Kind::gpipe});
  expect_losses_of_one_process(
      {.pipe = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 4, .schedule = Kind::zero_bubble});
  expect_losses_of_one_process({.pipe = 2, .tensor = 2, .accumulation = 4, .schedule = Kind::interleaved, .chunks = 2});
}

TEST(SplitLayoutsTest, TokensOfEachSample) {
  for (const int ranks : {2, 4}) {
    expect_losses_of_one_process({.context = ranks});
    expect_losses_of_one_process({.context = ranks, .context_kind = kUlysses});
  }
  expect_losses_of_one_process({.data = 2, .context = 2, .zero_stage = 1, .accumulation = 2});
  expect_losses_of_one_process({.data = 2, .context = 2, .zero_stage = 3, .context_kind = kUlysses});
  expect_losses_of_one_process({.context = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 2});
  expect_losses_of_one_process({.context = 2, .tensor = 2, .context_kind = kUlysses});
  expect_losses_of_one_process({.pipe = 2, .context = 2, .accumulation = 4});
  expect_losses_of_one_process({.data = 2, .context = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 1});
  expect_losses_of_one_process({.pipe = 2,
                                .context = 2,
                                .tensor = 2,
                                .sequence_parallel = true,
                                .accumulation = 2,
                                .schedule = Kind::zero_bubble,
                                .context_kind = kUlysses});
}

TEST(SplitLayoutsTest, ThreeAxesAtOnce) {
  expect_losses_of_one_process({.pipe = 2, .data = 2, .tensor = 2, .accumulation = 2});
  expect_losses_of_one_process({.pipe = 2,
                                .data = 2,
                                .tensor = 2,
                                .sequence_parallel = true,
                                .zero_stage = 1,
                                .accumulation = 4,
                                .schedule = Kind::zero_bubble});
  expect_losses_of_one_process({.pipe = 2,
                                .data = 2,
                                .tensor = 2,
                                .sequence_parallel = true,
                                .zero_stage = 2,
                                .accumulation = 2,
                                .schedule = Kind::gpipe});
  expect_losses_of_one_process({.pipe = 2, .data = 1, .tensor = 4, .sequence_parallel = true, .accumulation = 4});
}

TEST(SplitLayoutsTest, CheckpointsOfAnyLayoutContinueInAnyOther) {
  const std::vector<Layout> layouts = {
      {.data = 2},
      {.data = 2, .tensor = 2, .zero_stage = 1},
      {.tensor = 2, .sequence_parallel = true},
      {.pipe = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 2},
      {.data = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 3},
      {.data = 2, .context = 2, .tensor = 2, .zero_stage = 1},
      {.pipe = 2, .data = 2, .zero_stage = 3, .accumulation = 2, .schedule = Kind::interleaved, .chunks = 2},
      {.pipe = 2, .context = 2, .accumulation = 2, .schedule = Kind::zero_bubble, .context_kind = kUlysses}};
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_split_layouts_", ::getpid());
  const auto saved = [&](size_t i) { return folder / std::to_string(i); };
  for (size_t i = 0; i < layouts.size(); ++i) {
    EXPECT_THAT(run_ranks(layouts[i].ranks(),
                          [&](comm::World& world) {
                            SplitRun run(world, layouts[i]);
                            for (int step = 0; step < 4; ++step) {
                              run.step();
                            }
                            run.engine().save_checkpoint(saved(i));
                          }),
                IsEmpty())
        << layouts[i].describe();
  }
  for (const Layout& after : layouts) {
    EXPECT_THAT(run_ranks(after.ranks(),
                          [&](comm::World& world) {
                            const std::vector<double> losses = plain_losses(kBatch, 6, 1.0, nullptr, split_gpt());
                            for (size_t i = 0; i < layouts.size(); ++i) {
                              SplitRun run(world, after);
                              ASSERT_TRUE(run.engine().load_checkpoint(saved(i)));
                              for (int step = 4; step < 6; ++step) {
                                EXPECT_NEAR(run.step(), losses[step], 1e-5 * losses[step])
                                    << "step " << step << ", saved by " << layouts[i].describe();
                              }
                            }
                          }),
                IsEmpty())
        << after.describe();
  }
  fs::remove_all(folder);
}

TEST(SplitLayoutsTest, ResumedIsUninterrupted) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_split_resumed_", ::getpid());
  models::GptOptions shape = split_gpt();
  shape.dropout = 0.2; // random numbers inside and outside of what is split
  for (const bool sequence_parallel : {false, true}) {
    const Layout layout{.data = 2, .tensor = 2, .sequence_parallel = sequence_parallel, .zero_stage = 1};
    on_ranks(layout.ranks(), [&](comm::World& world) {
      torch::manual_seed(10 + world.rank() / 2);
      SplitRun whole(world, layout, {.shape = shape});
      for (int step = 0; step < 3; ++step) {
        whole.step();
      }
      whole.engine().save_checkpoint(folder / (sequence_parallel ? "parts" : "whole"));
      const double next = whole.step();
      const double last = whole.step();
      SplitRun resumed(world, layout, {.shape = shape});
      torch::manual_seed(99);
      ASSERT_TRUE(resumed.engine().load_checkpoint(folder / (sequence_parallel ? "parts" : "whole")));
      EXPECT_EQ(resumed.step(), next);
      EXPECT_EQ(resumed.step(), last);
    });
  }
  fs::remove_all(folder);
}

// What each rank would draw next.
at::Tensor draws(comm::World& world) {
  const at::Tensor mine = torch::rand({1}, torch::kFloat64);
  at::Tensor all = torch::empty({world.size()}, torch::kFloat64);
  world.group().all_gather(all, mine).wait();
  return all;
}

// One for each rank: equal among tensor ranks, and nowhere else.
void expect_one_stream_for_each_replica(const at::Tensor& drawn, const Layout& layout, const std::string& what) {
  std::set<double> different;
  for (int rank = 0; rank < drawn.numel(); ++rank) {
    EXPECT_EQ(drawn[rank].item<double>(), drawn[rank - rank % layout.tensor].item<double>())
        << "rank " << rank << ", " << what;
    different.insert(drawn[rank].item<double>());
  }
  EXPECT_EQ(std::ssize(different), layout.ranks() / layout.tensor) << what;
}

// States that tensor ranks shared would give replicas the same dropout for the rest of the run.
TEST(SplitLayoutsTest, RandomStatesContinueOnTheSameMeshAndBeginAnewOnAnother) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_split_random_", ::getpid());
  const std::vector<Layout> layouts = {{.tensor = 4},
                                       {.data = 2, .tensor = 2},
                                       {.data = 4},
                                       {.pipe = 2, .data = 2, .accumulation = 2},
                                       {.data = 2, .context = 2}};
  on_ranks(4, [&](comm::World& world) {
    std::vector<at::Tensor> next;
    for (size_t i = 0; i < layouts.size(); ++i) {
      torch::manual_seed(10 + world.rank() / layouts[i].tensor);
      SplitRun run(world, layouts[i]);
      run.step();
      run.engine().save_checkpoint(folder / std::to_string(i));
      next.push_back(draws(world));
    }
    for (size_t j = 0; j < layouts.size(); ++j) {
      SplitRun run(world, layouts[j]);
      for (size_t i = 0; i < layouts.size(); ++i) {
        const std::string what = concat("saved by ", layouts[i].describe(), ", loaded by ", layouts[j].describe());
        torch::manual_seed(99);
        ASSERT_TRUE(run.engine().load_checkpoint(folder / std::to_string(i)));
        const at::Tensor drawn = draws(world);
        EXPECT_EQ(drawn.equal(next[i]), i == j) << what;
        expect_one_stream_for_each_replica(drawn, layouts[j], what);
        ASSERT_TRUE(run.engine().load_checkpoint(folder / std::to_string(i)));
        EXPECT_TRUE(draws(world).equal(drawn)) << "reproducible, " << what;
      }
    }
  });
  // Of a version that did not say the mesh.
  const fs::path old = folder / "0" / "global_step1";
  checkpoint::Manifest manifest = checkpoint::Manifest::read(old);
  manifest.state.erase("mesh");
  std::ofstream(old / "manifest.json") << manifest.to_text();
  on_ranks(4, [&](comm::World& world) {
    SplitRun run(world, layouts[2]);
    ASSERT_TRUE(run.engine().load_checkpoint(folder / "0"));
    expect_one_stream_for_each_replica(draws(world), layouts[2], "a checkpoint without a mesh");
  });
  fs::remove_all(folder);
}

// A rule by dim or numel shall choose the same on any layout.
TEST(SplitLayoutsTest, ParameterGroupsSeeNamesAndSizesOfTheWholeModel) {
  using Sizes = std::map<std::string, std::vector<int64_t>>;
  for (const Layout& layout : {Layout{.tensor = 4}, Layout{.data = 2, .tensor = 2, .zero_stage = 3},
                               Layout{.pipe = 2, .tensor = 2, .accumulation = 2}}) {
    EXPECT_THAT(run_ranks(4,
                          [&](comm::World& world) {
                            Sizes whole;
                            for (const auto& item : models::Gpt(split_gpt())->named_parameters()) {
                              whole[item.key()] = item.value().sizes().vec();
                            }
                            Sizes seen;
                            const auto chooses = [&](const std::string& name, const std::vector<int64_t>& sizes) {
                              seen[name] = sizes;
                              return false;
                            };
                            SplitRun run(world, layout, {.options = [&](InitializeOptions& options) {
                                           options.parameter_groups = {{.chooses = chooses}};
                                         }});
                            EXPECT_GT(seen.size(), 10u);
                            for (const auto& [name, sizes] : seen) {
                              ASSERT_EQ(whole.count(name), 1u) << name;
                              EXPECT_EQ(sizes, whole[name]) << name;
                            }
                          }),
                IsEmpty())
        << layout.describe();
  }
}

// Rounding differs where sums are split, so the losses are only near those in fp32.
TEST(SplitLayoutsTest, LowPrecisionAndRecomputation) {
  using Change = std::function<void(InitializeOptions&)>;
  const std::vector<std::pair<const char*, Change>> kinds = {
      {"bf16", [](InitializeOptions& options) { options.config.precision.compute = precision::Type::bf16; }},
      {"fp16", [](InitializeOptions& options) { options.config.precision.compute = precision::Type::fp16; }},
      {"autocast", [](InitializeOptions& options) { options.config.precision.autocast = true; }},
  };
  for (const auto& [name, change] : kinds) {
    for (const bool sequence_parallel : {false, true}) {
      EXPECT_THAT(run_ranks(4,
                            [&, change = change](comm::World& world) {
                              const std::vector<double> losses = plain_losses(kBatch, 8, 1.0, nullptr, split_gpt());
                              SplitRun run(
                                  world,
                                  {.data = 2, .tensor = 2, .sequence_parallel = sequence_parallel, .zero_stage = 1},
                                  {.options = change});
                              double last = 0;
                              for (const double loss : losses) {
                                last = run.step();
                                EXPECT_NEAR(last, loss, 0.03 * loss);
                              }
                              EXPECT_LT(last, losses.front()) << "it must train";
                              at::Tensor both = torch::tensor({last, -last}, torch::kFloat64);
                              world.group().all_reduce(both, comm::ReduceOp::max).wait();
                              EXPECT_EQ(both[0].item<double>(), -both[1].item<double>()) << "all ranks have one loss";
                            }),
                  IsEmpty())
          << name << ", sequence parallelism " << sequence_parallel;
    }
  }
  on_ranks(4, [](comm::World& world) {
    const std::vector<double> losses = plain_losses(kBatch, 6, 1.0, nullptr, split_gpt());
    SplitRun run(
        world, {.pipe = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 2},
        {.options = [](InitializeOptions& options) { options.config.pipeline.activation_checkpoint_interval = 1; }});
    for (const double loss : losses) {
      EXPECT_NEAR(run.step(), loss, 1e-5 * loss);
    }
  });
}

TEST(SplitLayoutsTest, BytesOnTheTensorAxisAreThoseOfTheFormula) {
  for (const bool sequence_parallel : {false, true}) {
    on_ranks(4, [&](comm::World& world) {
      const models::GptOptions shape = split_gpt();
      SplitRun run(world, {.data = 2, .tensor = 2, .sequence_parallel = sequence_parallel});
      run.step();
      const int64_t before = run.engine().bytes_sent_by_axes().at("tensor");
      run.step();
      const int64_t sent = run.engine().bytes_sent_by_axes().at("tensor") - before;
      const int64_t rows = kBatch / 2 * shape.sequence_length;
      const int64_t P = rows * shape.hidden * 4;
      // An all-reduce of P sends 2P(N-1)/N, gathers and reduce-scatters P(N-1)/N. Four sums a
      // block, one for the embedding, one for the head; where the sequence is split a layer by
      // columns gathers its input once more.
      const int64_t sums = 4 * shape.layers + 2;
      const int64_t again = sequence_parallel ? 2 * shape.layers + 1 : 0;
      const int64_t activations = sums * P + again * (P / 2);
      const int64_t losses = rows * 2 * 4; // two numbers a row to each other rank
      const int64_t agreement = 5 * 8;     // loss and gradient norm
      EXPECT_EQ(sent, activations + losses + agreement);
    });
  }
}

TEST(SplitLayoutsTest, TheWholeModelIsCounted) {
  const auto count = [&](comm::World& world, const Layout& layout) {
    return SplitRun(world, layout).engine().num_parameters();
  };
  int64_t expected = 0;
  for (const models::LayerShape& part : models::layer_shapes(split_gpt())) {
    for (const auto& parameter : part.parameters) {
      expected += part.kind == models::LayerShape::Kind::head ? 0 : c10::multiply_integers(parameter.sizes); // tied
    }
  }
  for (const Layout& layout : {Layout{.tensor = 2}, Layout{.data = 2, .tensor = 2, .sequence_parallel = true},
                               Layout{.pipe = 2, .tensor = 2, .accumulation = 2}}) {
    on_ranks(layout.ranks(),
             [&](comm::World& world) { EXPECT_EQ(count(world, layout), expected) << layout.describe(); });
  }
}

TEST(SplitLayoutsTest, EvaluationAndLogitsAreThoseOfOneProcess) {
  for (const Layout& layout :
       {Layout{.data = 2, .tensor = 2}, Layout{.context = 2, .tensor = 2},
        Layout{.data = 2, .context = 2, .context_kind = kUlysses}, Layout{.tensor = 4, .sequence_parallel = true},
        Layout{.pipe = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 2}}) {
    EXPECT_THAT(run_ranks(layout.ranks(),
                          [&](comm::World& world) {
                            models::Gpt whole(split_gpt());
                            const std::vector<int64_t> indices = {3, 4, 5, 6};
                            const data::Batch batch = Counting().get(indices);
                            const torch::NoGradGuard no_grad;
                            const at::Tensor expected = whole->forward(batch.input());
                            SplitRun run(world, layout);
                            EXPECT_NEAR(run.engine().eval_batch(batch).item<double>(),
                                        whole->loss(batch.input(), batch.target()).item<double>(), 1e-5);
                            if (layout.pipe == 1) {
                              EXPECT_TRUE(run.gpt()->forward(batch.input()).allclose(expected, 1e-4, 1e-5));
                            }
                          }),
                IsEmpty())
        << layout.describe();
  }
}

// Gradients of one forward and backward as the engine averages them: over the context ranks.
TEST(SplitLayoutsTest, IgnoredTargetsAndLossesOfOnesOwnCountEveryTokenOnce) {
  on_ranks(2, [](comm::World& world) {
    const std::vector<int64_t> indices = {3, 4};
    const data::Batch batch = Counting().get(indices);
    const at::Tensor targets = batch.target().clone();
    targets.slice(1, 5).fill_(-100); // not the same number on both ranks
    models::ModelRanks ranks;
    ranks.context = world.group();
    const auto own = [&](models::Gpt& gpt) {
      return at::cross_entropy_loss(gpt->forward(batch.input()).flatten(0, 1), targets.flatten());
    };
    for (const bool of_the_model : {true, false}) {
      models::Gpt whole(split_gpt());
      models::Gpt mine(split_gpt(), ranks);
      const at::Tensor expected = of_the_model ? whole->loss(batch.input(), targets) : own(whole);
      const at::Tensor loss = of_the_model ? mine->loss(batch.input(), targets) : own(mine);
      expected.backward();
      loss.backward();
      at::Tensor mean = loss.detach().clone().reshape({1});
      at::Tensor grad = mine->transformer->ln_f->weight.grad().clone();
      world.group().all_reduce(mean).wait();
      world.group().all_reduce(grad).wait();
      EXPECT_NEAR(mean.item<double>() / 2, expected.item<double>(), 1e-5);
      EXPECT_TRUE((grad / 2).allclose(whole->transformer->ln_f->weight.grad(), 1e-4, 1e-6))
          << "loss of the model: " << of_the_model;
    }
  });
}

TEST(SplitLayoutsTest, WhatDoesNotFitIsRefused) {
  on_ranks(2, [](comm::World& world) {
    const auto refused = [&](const auto& f, const char* what) {
      EXPECT_THAT(f, testing::ThrowsMessage<InputError>(HasSubstr(what)));
    };
    models::GptOptions three = split_gpt();
    three.heads = 1;
    refused([&] { SplitRun(world, {.tensor = 2}, {.shape = three}); },
            "the 2 tensor-parallel ranks must divide the 1 heads");
    models::GptOptions odd = split_gpt();
    odd.sequence_length = 8;
    refused(
        [&] {
          SplitRun(world, {.tensor = 2}, {.shape = odd, .options = [&](InitializeOptions& options) {
                                            options.mesh = mesh::training_mesh(world.group(), {.pipe = 2});
                                          }});
        },
        "InitializeOptions::mesh has 2 pipeline stages and the model 1");
    refused(
        [&] {
          SplitRun(world, {.tensor = 2}, {.shape = odd, .options = [](InitializeOptions& options) {
                                            options.config.optimizer =
                                                optim::OptimizerOptions{.rule = optim::LambOptions{}};
                                          }});
        },
        "lamb needs the norm of the full parameter");
  });
}

} // namespace
} // namespace trireme::engine
