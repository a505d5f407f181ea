// Whatever becomes of activations, losses and gradients are the same bits; and what is kept is what the ways say.
#include <trireme/memory/activations/activations.h>

#include <trireme/base/error.h>
#include <trireme/memory/activations/saved.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <gmock/gmock.h>

#include <sys/resource.h>
#include <unistd.h>
#include <csignal>
#include <filesystem>
#include <map>

namespace trireme::activations {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int64_t kRows = 64;
constexpr int64_t kWidth = 96;

// A folder that must be empty in the end.
class Scratch {
 public:
  Scratch() : path_(fs::path(testing::TempDir()) / concat("trireme_moved_", ::getpid())) {
    fs::create_directories(path_);
  }
  ~Scratch() {
    EXPECT_TRUE(fs::is_empty(path_));
    fs::remove_all(path_);
  }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

// A residual block with a batch norm, dropout, and tensors of which several views are saved.
struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", torch::nn::BatchNorm1d(kWidth))),
        in(register_module("in", torch::nn::Linear(kWidth, 3 * kWidth))),
        out(register_module("out", torch::nn::Linear(kWidth, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor wide = in->forward(norm->forward(x));
    const auto parts = wide.chunk(3, 1);
    const at::Tensor mixed = at::dropout(parts[0] * parts[1].sigmoid() + parts[2].tanh(), 0.25, /*train=*/true);
    return x + out->forward(mixed).relu_();
  }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear in{nullptr}, out{nullptr};
};
TORCH_MODULE(Block);

struct Model : torch::nn::Module {
  explicit Model(int blocks) {
    for (int i = 0; i < blocks; ++i) {
      all.push_back(register_module(concat("block", i), Block()));
    }
  }
  at::Tensor forward(at::Tensor x, bool recomputes = false) {
    x = x * scale;
    for (Block& block : all) {
      x = call(
          {.key = block.get(), .type = "Block", .recomputes = recomputes, .recompute = {.buffers = block->buffers()}},
          [&block](at::Tensor y) { return block->forward(y); }, x);
    }
    return x.square().mean();
  }
  std::vector<at::Tensor> fixed() {
    std::vector<at::Tensor> list = parameters();
    recompute::append(list, buffers());
    return list;
  }
  std::vector<Block> all;
  at::Tensor scale = register_parameter("scale", torch::ones({1}));
};

struct Ended {
  std::vector<at::Tensor> values; // losses, gradients, buffers
  int64_t peak = 0;
  int64_t out = 0;
  int64_t in = 0;
  std::vector<Way> ways;
};

constexpr int kBlocks = 4;
constexpr int kSteps = 4;

Ended train(const std::optional<Options>& options,
            const std::function<void(Activations&, int step)>& after_step = nullptr,
            const std::function<at::Tensor(Model&, const at::Tensor&)>& loss_of = nullptr) {
  torch::set_num_threads(1);
  torch::manual_seed(7);
  Model model(kBlocks);
  std::optional<Activations> activations;
  if (options) {
    activations.emplace(*options);
  }
  Ended ended;
  for (int step = 0; step < kSteps; ++step) {
    model.zero_grad();
    for (int micro = 0; micro < 2; ++micro) {
      const at::Tensor x = torch::randn({kRows, kWidth});
      at::Tensor loss;
      {
        const auto scope = activations ? activations->enter(model.fixed()) : nullptr;
        loss = loss_of ? loss_of(model, x) : model.forward(x);
      }
      loss.backward();
      ended.values.push_back(loss.detach());
    }
    for (const at::Tensor& parameter : model.parameters()) {
      ended.values.push_back(parameter.grad().clone());
    }
    if (activations) {
      activations->end_step();
      if (after_step) {
        after_step(*activations, step);
      }
    }
  }
  for (const at::Tensor& buffer : model.buffers()) {
    ended.values.push_back(buffer.clone());
  }
  if (activations) {
    ended.peak = activations->peak_bytes();
    ended.out = activations->bytes_out();
    ended.in = activations->bytes_in();
    ended.ways = activations->ways();
  }
  return ended;
}

void expect_equal(const Ended& a, const Ended& b) {
  ASSERT_EQ(a.values.size(), b.values.size());
  for (size_t i = 0; i < a.values.size(); ++i) {
    EXPECT_TRUE(a.values[i].equal(b.values[i])) << "value " << i;
  }
}

TEST(ActivationsTest, EveryWayGivesTheSameBits) {
  const Scratch scratch;
  const Ended plain = train(std::nullopt);
  std::map<Way, Ended> all;
  for (const Way way : kWays) {
    all[way] = train(Options{.policy = way, .nvme_path = scratch.path(), .least_bytes = 0});
    SCOPED_TRACE(name_of(way));
    expect_equal(all[way], plain);
  }
  const int64_t input = kRows * kWidth * 4;
  // Of a block: the input, the norm's and its statistics, `wide`, sigmoid and tanh, the dropped and its mask, relu's
  // result.
  EXPECT_GE(all[Way::keep].peak, kBlocks * 8 * input);
  EXPECT_LE(all[Way::recompute].peak, kBlocks * input + all[Way::keep].peak / kBlocks);
  EXPECT_EQ(all[Way::keep].out + all[Way::recompute].out, 0);
  EXPECT_EQ(all[Way::host].out, 0) << "on the CPU they are on the host";
  EXPECT_EQ(all[Way::host].peak, all[Way::keep].peak);
  EXPECT_LT(all[Way::nvme].peak, all[Way::keep].peak);
  EXPECT_LT(all[Way::recompute_nvme].peak, all[Way::recompute].peak);
  EXPECT_EQ(all[Way::nvme].in, all[Way::nvme].out);
  EXPECT_EQ(all[Way::recompute_nvme].in, kSteps * 2 * kBlocks * input) << "the inputs, once each";
  EXPECT_GE(all[Way::nvme].in, kSteps * 2 * kBlocks * 7 * input) << "a storage, once each, of all that is saved";
  EXPECT_LE(all[Way::nvme].in, kSteps * 2 * kBlocks * 11 * input);
}

TEST(ActivationsTest, EachPartHasAWayOfItsOwn) {
  const Scratch scratch;
  const Ended plain = train(std::nullopt);
  const Ended mixed = train(
      Options{.choices = {Way::nvme, Way::recompute, Way::recompute_nvme, Way::keep}, .nvme_path = scratch.path()});
  expect_equal(mixed, plain);
  EXPECT_THAT(mixed.ways, testing::ElementsAre(Way::nvme, Way::recompute, Way::recompute_nvme, Way::keep));
  EXPECT_THROW(train(Options{.choices = {Way::keep, Way::keep}}), InputError);
  EXPECT_THROW(train(Options{.choices = std::vector<Way>(5, Way::keep)}), InputError);
  EXPECT_THROW(train(Options{.policy = Way::nvme}), InputError);
  EXPECT_THROW(train(Options{.policy = Way::keep, .layers = "("}), InputError);
}

TEST(ActivationsTest, OnlyClassesThatWereNamedAreParts) {
  const Ended other = train(Options{.policy = Way::recompute, .layers = "Attention"});
  EXPECT_TRUE(other.ways.empty());
  EXPECT_EQ(train(Options{.policy = Way::recompute, .layers = "Bl.ck$"}).ways.size(), kBlocks);
}

TEST(ActivationsTest, AutomaticStaysWithinTheBudgetAndKeepsWhatFits) {
  const Scratch scratch;
  const Ended plain = train(std::nullopt);
  const Ended keep = train(Options{.policy = Way::keep});
  const Ended recompute = train(Options{.policy = Way::recompute});
  for (const int64_t budget :
       {recompute.peak * 2, (recompute.peak + keep.peak) / 2 + recompute.peak / 2, keep.peak * 4}) {
    std::string said;
    const auto decide = [&](Activations& activations, int step) {
      EXPECT_EQ(activations.wants_decision(), step == 1) << "decided after the second step";
      if (activations.wants_decision()) {
        said = activations.decide(activations.measured());
      }
      if (step >= 2) {
        EXPECT_LE(activations.peak_bytes(), budget) << testing::PrintToString(to_words(activations.ways())) << said;
      }
    };
    const Ended chosen = train(
        Options{.automatic = true, .memory_budget = budget, .nvme_path = scratch.path(), .profile = true}, decide);
    expect_equal(chosen, plain);
    EXPECT_THAT(said, HasSubstr("activations of 4 parts"));
    EXPECT_THAT(said, HasSubstr("0 Block: forward"));
    if (budget == keep.peak * 4) {
      EXPECT_EQ(chosen.ways, std::vector<Way>(kBlocks, Way::keep));
    }
    expect_equal(train(Options{.choices = chosen.ways, .nvme_path = scratch.path()}), plain);
  }
}

// What another run has chosen may be more than this disk, or this host, has room for.
TEST(ActivationsTest, ADecisionOfAnotherRunNeedsRoom) {
  const Scratch scratch;
  const auto has_room = [&](Way way, int64_t bytes, int64_t ranks = 1, int64_t in_flight = 1) {
    const Activations activations(
        {.automatic = true, .memory_budget = 1, .nvme_path = scratch.path(), .ranks_on_host = ranks}, at::kCPU, {},
        in_flight);
    return activations.has_room_for({{way, Way::keep}, {bytes, 1}, {0, 0}, {0, 0}}, /*host_room=*/1000);
  };
  const auto free = static_cast<int64_t>(fs::space(scratch.path()).available);
  EXPECT_TRUE(has_room(Way::nvme, free / 2));
  EXPECT_FALSE(has_room(Way::nvme, free / 2, 3)) << "a third is this rank's";
  EXPECT_FALSE(has_room(Way::nvme, free / 2, 1, 4)) << "each of four micro-batches in flight";
  EXPECT_TRUE(has_room(Way::keep, 2 * free));
  EXPECT_TRUE(has_room(Way::host, 500));
  EXPECT_FALSE(has_room(Way::host, 501));
  const Activations without({.automatic = true, .memory_budget = 1});
  EXPECT_FALSE(without.has_room_for({{Way::nvme}, {1}, {0}, {0}}, 1000)) << "no folder";
}

TEST(ActivationsTest, ABudgetThatNothingFitsSaysWhatWould) {
  try {
    train(Options{.automatic = true, .memory_budget = 1000}, [](Activations& activations, int) {
      if (activations.wants_decision()) {
        activations.decide(activations.measured());
      }
    });
    FAIL() << "it fits";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("4*recompute"));
    EXPECT_THAT(error.what(), HasSubstr("Raise memory_budget to"));
  }
}

// Storages that an earlier part keeps anyway, tensors that are saved twice, a graph that is used twice, one that is
// dropped.
TEST(ActivationsTest, GraphsMayBeUsedTwiceOrNever) {
  const Scratch scratch;
  const auto twice = [](Model& model, const at::Tensor& x) {
    model.forward(torch::randn({kRows, kWidth})); // dropped
    const at::Tensor loss = model.forward(x);
    loss.backward({}, /*retain_graph=*/true);
    return loss;
  };
  expect_equal(
      train(Options{.choices = {Way::keep, Way::nvme, Way::nvme, Way::recompute_nvme}, .nvme_path = scratch.path()},
            nullptr, twice),
      train(std::nullopt, nullptr, twice));
}

TEST(ActivationsTest, NothingIsCountedWhenAllIsOver) {
  const Scratch scratch;
  for (const Way way : {Way::keep, Way::recompute}) {
    train(Options{.policy = way},
          [&](Activations& activations, int) { EXPECT_EQ(activations.bytes(), 0) << name_of(way); });
  }
  int64_t spare = 0; // buffers that wait for the next step
  train(Options{.policy = Way::nvme, .nvme_path = scratch.path()}, [&](Activations& activations, int step) {
    spare = step == 0 ? activations.bytes() : spare;
    EXPECT_EQ(activations.bytes(), spare);
  });
}

TEST(ActivationsTest, ASavedTensorThatChangesIsFound) {
  const Scratch scratch;
  for (const Way way : {Way::keep, Way::nvme, Way::recompute_nvme}) {
    Activations activations(Options{.policy = way, .nvme_path = scratch.path(), .least_bytes = 0});
    torch::nn::Linear layer(8, 8);
    const at::Tensor x = torch::ones({4, 8}).requires_grad_();
    at::Tensor y = x * 2;
    at::Tensor loss;
    {
      const auto scope = activations.enter(layer->parameters());
      loss = call({.key = layer.get()}, [&](at::Tensor in) { return layer->forward(in); }, y).sum();
    }
    y.add_(1);
    try {
      loss.backward();
      ADD_FAILURE() << name_of(way);
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(),
                  testing::AnyOf(HasSubstr("modified by an inplace operation"), HasSubstr("modified in place")))
          << name_of(way);
    }
  }
}

// What a model's forward changes in place after it was saved, once it was copied: the copy is of the values before.
TEST(ActivationsTest, EachVersionOfAStorageIsMovedByItself) {
  const auto ledger = std::make_shared<Ledger>();
  const Scratch scratch;
  const auto mover = std::make_shared<Mover>(at::kCPU, ledger, scratch.path(), aio::Options{});
  SavedStorages storages(ledger, mover);
  at::Tensor x = torch::full({5000}, 1.0F);
  const auto first = storages.of(x.storage(), 0, Place::nvme);
  EXPECT_EQ(storages.of(x.storage(), 0, Place::nvme), first);
  x.fill_(2);
  const auto second = storages.of(x.storage(), 1, Place::nvme);
  EXPECT_NE(second, first);
  const auto values = [&](const std::shared_ptr<SavedStorage>& saved) {
    return static_cast<const float*>(mover->wait_for(*saved->away).data())[4999];
  };
  EXPECT_EQ(values(first), 1);
  EXPECT_EQ(values(second), 2);
}

// What a model recomputes by itself inside a part: its inputs move, not what its first forward drops at once.
TEST(ActivationsTest, RecomputationInsideAPartMovesItsInputs) {
  const Scratch scratch;
  Activations activations(Options{.policy = Way::nvme, .nvme_path = scratch.path()});
  const at::Tensor x = torch::randn({kRows, kWidth}).requires_grad_();
  const int key = 0;
  at::Tensor loss;
  {
    const auto scope = activations.enter({});
    loss = call(
               {.key = &key},
               [](at::Tensor in) {
                 return recompute::call([](at::Tensor y) { return y.sin().cos().sin().cos(); }, in * 2);
               },
               x)
               .sum();
  }
  EXPECT_EQ(activations.bytes_out(), kRows * kWidth * 4);
  loss.backward();
  const at::Tensor grad = x.grad().clone();
  x.mutable_grad() = at::Tensor();
  (x * 2).sin().cos().sin().cos().sum().backward();
  EXPECT_TRUE(x.grad().equal(grad));
}

// A disk without room, as far as a process can make one: files may not become large. The step ends with the reason and
// the next one works.
TEST(ActivationsTest, ADiskWithoutRoomEndsTheForwardWithTheReason) {
  const Scratch scratch;
  const rlimit unlimited = [] {
    rlimit now{};
    ::getrlimit(RLIMIT_FSIZE, &now);
    return now;
  }();
  ::signal(SIGXFSZ, SIG_IGN);
  const auto set_most = [&](rlim_t bytes) {
    const rlimit limit{bytes, unlimited.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  };
  Model model(2);
  Activations activations(Options{.policy = Way::nvme, .nvme_path = scratch.path()});
  const auto step = [&] {
    const auto scope = activations.enter(model.fixed());
    return model.forward(torch::ones({kRows, kWidth}));
  };
  set_most(1 << 20); // less than a file is made for, and enough for a piece
  step().backward();
  set_most(2048);
  try {
    Activations without_room(Options{.policy = Way::nvme, .nvme_path = scratch.path()});
    const auto scope = without_room.enter(model.fixed());
    model.forward(torch::ones({kRows, kWidth}));
    ADD_FAILURE() << "there is room";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(scratch.path()));
  }
  set_most(unlimited.rlim_cur);
  step().backward();
  EXPECT_GT(activations.bytes_in(), 0);
}

// Within a part another one is its own affair; without an Activations a part does as it says itself.
TEST(ActivationsTest, PartsWithinParts) {
  int calls = 0;
  const auto inner = [&](at::Tensor x) {
    ++calls;
    return x.sin();
  };
  const int inner_key = 0;
  const int outer_key = 0;
  const auto outer = [&](at::Tensor x) { return call({.key = &inner_key, .recomputes = true}, inner, x); };
  const at::Tensor x = torch::ones({3}).requires_grad_();
  call({.key = &outer_key}, outer, x).sum().backward();
  EXPECT_EQ(calls, 2);
  calls = 0;
  Activations activations(Options{.policy = Way::recompute});
  {
    const auto scope = activations.enter({});
    EXPECT_TRUE(active());
    call({.key = &outer_key}, outer, x).sum().backward();
  }
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(activations.ways().size(), 1);
  EXPECT_FALSE(active());
}

} // namespace
} // namespace trireme::activations
