// The matrix: parameters, gradients, masters with optimizer states, and activations, each of them where it may be, at
// every stage of ZeRO, on 1, 2 and 4 ranks and in pipelines: 10 steps, resumed in the middle, are the bits of the CPU,
// where nothing is moved. docs/offload.md has the table of which test shows what.
#include "offload_case.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using activations::Way;
using offload::Place;
using precision::Type;
using testing::IsEmpty;

constexpr int kAllSteps = 10;

struct Layout {
  int ranks;
  int pipe;
  int stage;
  Type type;
};

std::string name_of(const Layout& layout) {
  return concat("zero", layout.stage, '_', layout.ranks, "ranks", layout.pipe > 1 ? concat("_pipe", layout.pipe) : "",
                layout.type == Type::bf16 ? "_bf16" : "_fp32");
}

// Gradients are with the states. Every place of states, also of half of them, with every place of parameters; what
// becomes of activations takes turns, so that each way comes with each place of the others. With TRIREME_LONG_TESTS
// every way comes with all of them.
std::vector<Offloaded> placements(const Layout& layout, const fs::path& files) {
  const std::vector<Way> ways = {Way::host, Way::nvme, Way::recompute, Way::keep};
  const bool all_ways = std::getenv("TRIREME_LONG_TESTS") != nullptr;
  std::vector<Offloaded> all;
  size_t turn = static_cast<size_t>(layout.ranks + layout.pipe);
  for (const auto& [states, ratio] :
       {std::pair(Place::host, 1.0), std::pair(Place::nvme, 1.0), std::pair(Place::device, 1.0),
        std::pair(Place::host, 0.5), std::pair(Place::nvme, 0.5)}) {
    for (const Place parameters : {Place::device, Place::host, Place::nvme}) {
      if (parameters == Place::device ? states == Place::device : layout.stage < 3) { // nothing moves; refused
        continue;
      }
      for (size_t i = 0; i < (all_ways ? ways.size() : layout.stage < 3 && ratio == 1 ? 2 : 1); ++i) {
        Offloaded& one = all.emplace_back();
        one.run = {.name = concat(ratio < 1 ? "half of the states " : "states ", offload::word(states), ", parameters ",
                                  offload::word(parameters)),
                   .zero_stage = layout.stage,
                   .type = layout.type,
                   .stages = layout.pipe};
        one.states = states;
        one.ratio = ratio;
        one.parameters = parameters;
        one.files = files;
        one.way = ways[turn++ % ways.size()];
      }
    }
  }
  return all;
}

// The buckets of a single data rank that shards its parameters are units, those of one that does not have sizes:
// squares of gradients are added up bucket by bucket, the norm is another one in the last bit, and with clipping all
// follows from it. So `sharded` does on the CPU what it does where they are elsewhere: "cpu" shards them there and
// moves nothing.
Seen on_cpu(comm::World& world, const Offloaded& one, bool sharded) {
  InitializeOptions options = options_of(one, at::kCPU, mesh_of(world, one.run));
  options.config.offload.parameters.place = sharded ? Place::host : Place::device;
  const auto engine = initialize(world, options).engine;
  Seen seen;
  train_steps(*engine, kAllSteps, seen);
  add_weights(seen, *engine);
  return seen;
}

void expect_as_on_cpu(comm::World& world, const Offloaded& one, const Seen& cpu, const fs::path& saved) {
  SCOPED_TRACE(concat(one.run.name, ", activations ", activations::name_of(*one.way)));
  Seen seen;
  {
    const auto first = engine_of(world, one, sim::device());
    train_steps(*first, kAllSteps / 2, seen);
    first->save_checkpoint(saved);
  }
  const auto resumed = engine_of(world, one, sim::device());
  ASSERT_TRUE(resumed->load_checkpoint(saved));
  train_steps(*resumed, kAllSteps - kAllSteps / 2, seen);
  add_weights(seen, *resumed);
  expect_same(seen, cpu);
  const bool in_files = one.states == Place::nvme || one.parameters == Place::nvme;
  ASSERT_EQ(resumed->offload_traffic().has_value(), in_files);
  EXPECT_TRUE(!in_files || resumed->offload_traffic()->written > 0);
  ASSERT_NE(resumed->activations(), nullptr);
  EXPECT_EQ(resumed->activations()->bytes_in() > 0, activations::moves(*one.way));
  EXPECT_THAT(sim::problems(), IsEmpty());
  sim::clear_problems();
}

// Norms that differ in the last bits of a double, as has_other_norms() says, and clip factors that differ no more: a
// step in fp32 rounds that away.
void expect_same_but_rounding(const Seen& a, const Seen& b) {
  ASSERT_EQ(a.numbers.size(), b.numbers.size());
  for (size_t i = 0; i < a.numbers.size(); ++i) {
    EXPECT_NEAR(a.numbers[i], b.numbers[i], 1e-9 * b.numbers[i]) << i;
  }
}

class SimDevicePlacementsTest : public testing::TestWithParam<Layout> {};

TEST_P(SimDevicePlacementsTest, EachTrainsAndResumesAsOnTheCpu) {
  const Layout& layout = GetParam();
  const fs::path folder = scratch(concat("placements_", name_of(layout)).c_str());
  const std::vector<Offloaded> all = placements(layout, folder / "files");
  test::on_ranks(layout.ranks,
                 [&](comm::World& world) {
                   start_single_threaded();
                   const Seen cpu = on_cpu(world, all.front(), false);
                   const bool alone = layout.stage == 3 && layout.ranks == layout.pipe;
                   const Seen sharded = alone ? on_cpu(world, all.front(), true) : cpu;
                   if (alone) {
                     expect_same_but_rounding(sharded, cpu);
                   }
                   for (size_t i = 0; i < all.size(); ++i) {
                     expect_as_on_cpu(world, all[i], all[i].parameters == Place::device ? cpu : sharded,
                                      folder / concat("saved", i));
                   }
                 },
                 {.deadline = std::chrono::minutes(10)});
  for (const char* const kind : {"states", "parameters"}) {
    const fs::path left = folder / "files" / kind;
    EXPECT_TRUE(fs::exists(left) ? fs::is_empty(left) : layout.stage < 3) << kind;
  }
  fs::remove_all(folder);
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int stage : {1, 2, 3}) {
    for (const auto& [ranks, pipe] :
         {std::pair(1, 1), std::pair(2, 1), std::pair(4, 1), std::pair(2, 2), std::pair(4, 2)}) {
      all.push_back({ranks, pipe, stage, (stage + ranks + pipe) % 2 == 0 ? Type::fp32 : Type::bf16});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, SimDevicePlacementsTest, testing::ValuesIn(layouts()),
                         [](const auto& info) { return name_of(info.param); });

} // namespace
} // namespace trireme::engine
