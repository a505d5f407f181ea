// A checkpoint of any layout goes on in any other: the order of flat buffers depends on neither.
#include "small_run.h"

#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/models/gpt_layers.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using precision::Type;
using test::on_ranks;
using test::run_ranks;
using testing::IsEmpty;

struct Layout {
  const char* name;
  int pipe;
  int data;
  int zero_stage;

  int ranks() const { return pipe * data; }
};

constexpr Layout kLayouts[] = {
    {"data1", 1, 1, 0},
    {"data2", 1, 2, 0},
    {"data2_zero1", 1, 2, 1},
    {"data2_zero2", 1, 2, 2},
    {"data2_zero3", 1, 2, 3},
    {"pipe2_data1", 2, 1, 0},
    {"pipe2_data2", 2, 2, 0},
    {"pipe2_data2_zero1", 2, 2, 1},
    {"pipe2_data2_zero2", 2, 2, 2},
};
constexpr int kMore = 2;     // steps after a checkpoint
constexpr double kLr = 0.01; // small_config()'s

// In one piece, or as a list of layers: the names are the same.
std::shared_ptr<Engine> make_engine(comm::World& world, const Layout& layout, Type type) {
  InitializeOptions options;
  options.config = small_config(12, 2);
  options.config.zero.stage = layout.zero_stage;
  options.config.zero.param_persistence_threshold = 40;
  options.config.precision.compute = type;
  options.training_data = std::make_shared<Counting>();
  options.shuffle = false;
  if (layout.pipe > 1) {
    pipeline::PipelineOptions stages;
    stages.stages = layout.pipe;
    options.pipeline =
        std::make_shared<pipeline::PipelineModule>(models::gpt_layers(small_gpt()), models::token_loss, stages);
  } else {
    models::Gpt model(small_gpt());
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
  }
  return initialize(world, options).engine;
}

void write_losses(const fs::path& file, const std::vector<double>& losses) {
  std::ofstream out(file);
  out.precision(17);
  for (const double loss : losses) {
    out << loss << '\n';
  }
}

std::vector<double> read_losses(const fs::path& file) {
  std::ifstream in(file);
  std::vector<double> losses;
  for (double loss = 0; in >> loss;) {
    losses.push_back(loss);
  }
  return losses;
}

std::vector<double> train(Engine& engine, int steps) {
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    losses.push_back(engine.train_batch().item<double>());
  }
  return losses;
}

// All but random states.
std::vector<std::string> names_of(const checkpoint::Checkpoint& saved) {
  std::vector<std::string> names = saved.names();
  std::erase_if(names, [](const std::string& name) { return name.starts_with("rng/"); });
  return names;
}

void expect_same_bits(const fs::path& folder, const fs::path& expected_folder) {
  const auto saved = checkpoint::Checkpoint::open(folder);
  const auto expected = checkpoint::Checkpoint::open(expected_folder);
  EXPECT_EQ(names_of(saved), names_of(expected));
  for (const std::string& name : names_of(expected)) {
    EXPECT_TRUE(saved.read(name).equal(expected.read(name))) << name;
  }
}

// Layouts add in different orders. A parameter whose gradient is nothing but rounding moves by up to the learning rate
// in every step.
void expect_near(const fs::path& folder, const fs::path& expected_folder, double tolerance) {
  const auto saved = checkpoint::Checkpoint::open(folder);
  const auto expected = checkpoint::Checkpoint::open(expected_folder);
  for (const std::string& name : names_of(expected)) {
    const at::Tensor a = saved.read(name).to(torch::kFloat64);
    const at::Tensor b = expected.read(name).to(torch::kFloat64);
    if (name.starts_with("exp_avg")) {
      EXPECT_LE((a - b).norm().item<double>(), tolerance * b.norm().item<double>() + 1e-12) << name;
    } else {
      EXPECT_LE((a - b).abs().max().item<double>(), 2.5 * kLr * kMore) << name;
    }
  }
}

class LayoutsTest : public testing::TestWithParam<Type> {
 protected:
  LayoutsTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_layouts_", ::getpid())) {
    fs::create_directories(folder_);
  }
  ~LayoutsTest() override { fs::remove_all(folder_); }

  double loss_tolerance() const { return GetParam() == Type::fp32 ? 2e-5 : 1e-2; }
  double moment_tolerance() const { return GetParam() == Type::fp32 ? 2e-3 : 0.1; }

  // Saves after `before` steps, goes on, and leaves the losses and the end.
  void save_in_every_layout(int before) {
    for (const Layout& layout : kLayouts) {
      EXPECT_THAT(run_ranks(layout.ranks(),
                            [&](comm::World& world) {
                              const fs::path folder = folder_ / layout.name;
                              const auto engine = make_engine(world, layout, GetParam());
                              train(*engine, before);
                              engine->save_checkpoint(folder, "first");
                              const std::vector<double> losses = train(*engine, kMore);
                              engine->save_checkpoint(folder, "last");
                              if (world.rank() == 0) {
                                write_losses(folder_ / concat(layout.name, ".losses"), losses);
                              }
                            }),
                  IsEmpty())
          << layout.name;
    }
  }

  void resume(const Layout& target, const std::vector<Layout>& sources) {
    on_ranks(target.ranks(), [&](comm::World& world) {
      for (const Layout& source : sources) {
        SCOPED_TRACE(concat("saved by ", source.name, ", resumed by ", target.name));
        const fs::path folder = folder_ / concat(source.name, "-", target.name);
        const auto engine = make_engine(world, target, GetParam());
        ASSERT_TRUE(engine->load_checkpoint(folder_ / source.name, "first"));
        engine->save_checkpoint(folder, "loaded");
        const std::vector<double> losses = train(*engine, kMore);
        engine->save_checkpoint(folder, "last");
        if (world.rank() != 0) {
          continue;
        }
        expect_same_bits(folder / "loaded", folder_ / source.name / "first");
        const std::vector<double> expected = read_losses(folder_ / concat(source.name, ".losses"));
        ASSERT_EQ(expected.size(), losses.size());
        for (int step = 0; step < kMore; ++step) {
          EXPECT_NEAR(losses[step], expected[step], loss_tolerance() * expected[step])
              << "step " << step << " after it";
        }
        expect_near(folder / "last", folder_ / source.name / "last", moment_tolerance());
      }
    });
  }

  fs::path folder_;
};

TEST_P(LayoutsTest, ACheckpointOfEachResumesInEachOther) {
  save_in_every_layout(1);
  for (const Layout& target : kLayouts) {
    resume(target, {std::begin(kLayouts), std::end(kLayouts)});
  }
}

TEST_P(LayoutsTest, OneOfBeforeTheFirstStepDoesToo) {
  save_in_every_layout(0);
  for (size_t i = 0; i < std::size(kLayouts); ++i) {
    resume(kLayouts[i], {kLayouts[i], kLayouts[(i + 1) % std::size(kLayouts)]});
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LayoutsTest, testing::Values(Type::fp32, Type::bf16),
                         [](const auto& info) { return info.param == Type::fp32 ? "fp32" : "bf16"; });

// Checkpoints of before had the order in which gradients became ready. It is not read any more, and does no harm.
TEST(OldCheckpointTest, AnOrderInItIsIgnored) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_old_order_", ::getpid());
  on_ranks(2, [&](comm::World& world) {
    const Layout& layout = kLayouts[1];
    const auto engine = make_engine(world, layout, Type::bf16);
    train(*engine, 2);
    engine->save_checkpoint(folder / "new", "saved");
    std::vector<checkpoint::TensorShard> shards;
    const auto saved = checkpoint::Checkpoint::open(folder / "new" / "saved");
    if (world.rank() == 0) {
      for (const std::string& name : saved.names()) {
        const at::Tensor values = saved.read(name);
        shards.push_back({name, saved.entry(name).kind, values.sizes().vec(), 0, values, {}, {}});
      }
      const at::Tensor order =
          torch::randperm(static_cast<int64_t>(engine->module().parameters().size()), torch::kInt64);
      shards.push_back({"order/0/stage/0/of/1", "order", order.sizes().vec(), 0, order, {}, {}});
    }
    checkpoint::save(folder / "old", "saved", world.group(), shards, saved.state());
    const auto resumed = make_engine(world, layout, Type::bf16);
    ASSERT_TRUE(resumed->load_checkpoint(folder / "old"));
    EXPECT_EQ(train(*resumed, 2), train(*engine, 2));
  });
  fs::remove_all(folder);
}

} // namespace
} // namespace trireme::engine
