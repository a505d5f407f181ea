// What a program registers, as ranks use it.
#include <tests/support/run_ranks.h>

#include <trireme/base/file.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/data/replay_loader.h>
#include <trireme/monitor/metrics.h>
#include <trireme/parallel/tensor/layers.h>
#include <trireme/shards/zero/sharded.h>
#include <trireme/train/train_main.h>
#include <trireme/train/train_run.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <unistd.h>
#include <filesystem>

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

constexpr int64_t kHidden = 8;

// Two layers whose hidden values tensor ranks share.
struct SplitNetImpl : torch::nn::Module {
  explicit SplitNetImpl(const tensor::Ranks& ranks)
      : up(register_module("up", tensor::ColumnParallelLinear(4, kHidden, ranks))),
        down(register_module("down", tensor::RowParallelLinear(kHidden, 1, ranks))) {}
  at::Tensor forward(const at::Tensor& x) { return down(up(x).tanh()); }
  tensor::ColumnParallelLinear up;
  tensor::RowParallelLinear down;
};
TORCH_MODULE(SplitNet);

// Each layer is gathered from all ranks while it is used.
struct ShardedNetImpl : torch::nn::Module {
  ShardedNetImpl() : up(register_module("up", Layer(4, kHidden))), down(register_module("down", Layer(kHidden, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return down->forward(up->forward(x).tanh()); }
  using Layer = zero::Sharded<torch::nn::Linear>;
  Layer up, down;
};
TORCH_MODULE(ShardedNet);

class Waves : public data::Dataset {
 public:
  explicit Waves(int64_t size = 64) : size_(size) {}
  int64_t size() const override { return size_; }
  data::Batch get(std::span<const int64_t> indices) const override {
    std::vector<at::Tensor> rows;
    for (const int64_t index : indices) {
      rows.push_back(torch::arange(4).add(index).sin());
    }
    const at::Tensor x = torch::stack(rows);
    return {{x}, {x.sum(1, true)}, std::ssize(indices)};
  }
  std::string describe() const override { return "waves"; }

 private:
  int64_t size_;
};

Registry registry() {
  Registry out;
  out.model("split", [](Keys& keys) {
    const bool says_so = keys.get("says_so", true);
    ModelType type = [](const ModelContext& with) {
      SplitNet net(with.ranks.tensor);
      return Model{.module = net.ptr(), .loss = [net](const data::Batch& batch) mutable {
                     return torch::mse_loss(net(batch.input()), batch.target());
                   }};
    };
    type.tensor = says_so;
    return type;
  });
  out.model("sharded", [](Keys&) {
    return [](const ModelContext&) {
      ShardedNet net;
      return Model{
          .module = net.ptr(),
          .loss =
              [net](const data::Batch& batch) mutable { return torch::mse_loss(net(batch.input()), batch.target()); },
          .count_right =
              [net](const data::Batch& batch) mutable {
                const at::Tensor right = net(batch.input()).sign().eq(batch.target().sign());
                return right.narrow(0, 0, batch.samples).sum();
              }};
    };
  });
  out.model("layered", [](Keys&) {
    return [](const ModelContext&) {
      return Layers{.layers = {torch::nn::Linear(4, kHidden), [](const at::Tensor& x) { return x.tanh(); },
                               pipeline::LayerSpec<torch::nn::Linear>(kHidden, 1)},
                    .loss = [](const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
                      return torch::mse_loss(outputs[0], targets[0]);
                    }};
    };
  });
  out.data("waves", [](Keys& keys) {
    keys.path("file");
    return [rows = keys.get("validation_rows", 64)](const DataContext&) {
      return data::Datasets{.train = std::make_shared<Waves>(), .validation = std::make_shared<Waves>(rows)};
    };
  });
  out.data("waves_by_loader", [](Keys&) {
    return [](const DataContext& with) {
      const auto begin = [rank = with.rank, replicas = with.replicas, rows = with.micro_batch](int64_t) {
        return [=, next = int64_t{0}]() mutable -> std::optional<data::Batch> {
          std::vector<int64_t> indices;
          for (int64_t row = 0; row < rows; ++row) {
            indices.push_back(next++ * replicas + rank);
          }
          return indices.back() < Waves().size() ? std::optional(Waves().get(indices)) : std::nullopt;
        };
      };
      auto epochs = std::make_unique<data::ReplayLoader>(begin, "waves by a loader", with.world.rank() == 0);
      return data::Datasets{.loader = std::make_shared<data::RepeatingLoader>(std::move(epochs)),
                            .validation = std::make_shared<Waves>()};
    };
  });
  return out;
}

class RegistryTest : public testing::Test {
 protected:
  RegistryTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_registry_", ::getpid())) {
    fs::create_directories(folder_);
  }
  ~RegistryTest() override { fs::remove_all(folder_); }
  fs::path write(const std::string& model, const std::string& data = R"({"type": "waves"})") const {
    write_file_atomically(folder_ / "run.json", concat(R"({"model": )", model, R"(, "data": )", data, R"(,
 "training": {"steps": 4}, "engine": {"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}})"));
    return folder_ / "run.json";
  }
  config::RunConfig read(const fs::path& file, const std::vector<std::string>& overrides = {}) const {
    return config::read_run_file(file, overrides, config::Files::must_exist, registry_.types());
  }
  std::vector<double> losses(int ranks, const std::string& out, const std::vector<std::string>& overrides) const {
    std::vector<double> all;
    for (const monitor::StepMetrics& step : steps(ranks, out, overrides)) {
      all.push_back(step.loss.value());
    }
    return all;
  }
  std::vector<monitor::StepMetrics> steps(int ranks, const std::string& out,
                                          const std::vector<std::string>& overrides) const {
    on_ranks(ranks, [&](comm::World& world) {
      TrainCommand command;
      command.run_file = folder_ / "run.json";
      command.out = folder_ / out;
      command.overrides = overrides;
      EXPECT_EQ(train(command, registry_, world), 0);
    });
    return monitor::read_metrics(folder_ / out / "metrics.jsonl");
  }

  const Registry registry_ = registry();
  const fs::path folder_;
};

TEST_F(RegistryTest, ATypeThatIsSplitGetsItsRanks) {
  const fs::path file = write(R"({"type": "split"})");
  const std::vector<double> one = losses(1, "one", {});
  const std::vector<double> two = losses(2, "two", {"parallel.tensor=2"});
  ASSERT_EQ(one.size(), 4u);
  ASSERT_EQ(two.size(), 4u);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(one[i], two[i], 1e-6);
  }
  write(R"({"type": "split", "says_so": false})");
  EXPECT_THROW(read(file, {"parallel.tensor=2"}), InputError);
}

// A loader of the same batches trains and is evaluated as the data set is.
TEST_F(RegistryTest, TrainingByALoaderIsEvaluatedOnADataSet) {
  const std::vector<std::string> overrides = {"training.eval_every=2", "data.shuffle=false"};
  write(R"({"type": "split"})");
  const auto expected = steps(1, "by_data_set", overrides);
  write(R"({"type": "split"})", R"({"type": "waves_by_loader"})");
  for (const int ranks : {1, 2}) {
    const auto found = steps(ranks, concat("by_loader_", ranks), overrides);
    ASSERT_EQ(found.size(), 4u);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i].loss.value(), expected[i].loss.value(), 1e-6);
      ASSERT_EQ(found[i].val_loss.has_value(), i % 2 == 1);
      EXPECT_NEAR(found[i].val_loss.value_or(0), expected[i].val_loss.value_or(0), 1e-6);
    }
    EXPECT_LT(found[3].val_loss.value(), found[1].val_loss.value());
  }
}

// The second batch has samples on one rank alone: the other takes part all the same.
TEST_F(RegistryTest, ShardedModelsCountUnevenValidationData) {
  write(R"({"type": "sharded"})", R"({"type": "waves", "validation_rows": 9})");
  const auto one = steps(1, "one", {"training.eval_every=2"});
  const auto two = steps(2, "two",
                         {"training.eval_every=2", "engine.zero_optimization.stage=3",
                          "engine.zero_optimization.stage3_param_persistence_threshold=0"});
  ASSERT_EQ(one.size(), 4u);
  ASSERT_EQ(two.size(), 4u);
  for (size_t i = 1; i < one.size(); i += 2) {
    EXPECT_NEAR(two[i].val_loss.value(), one[i].val_loss.value(), 1e-6);
    EXPECT_NEAR(two[i].val_accuracy.value(), one[i].val_accuracy.value(), 1e-9);
  }
}

// In one piece, sharded as it is built, and as a list of which one layer is built already.
TEST_F(RegistryTest, FreezesWhatAProgramBuilds) {
  const auto weight = [&](const std::string& out, const std::string& layer) {
    return checkpoint::Checkpoint::open(folder_ / out / "checkpoints").read(layer + ".weight");
  };
  for (const auto& [type, frozen, trained, layout] :
       {std::tuple("sharded", "up", "down", "engine.zero_optimization.stage=3"),
        {"layered", "0", "2", "parallel.pipe=2"},
        {"layered", "2", "0", "parallel.pipe=2"}}) {
    SCOPED_TRACE(concat(type, ' ', layout));
    write(concat(R"({"type": ")", type, "\"}"));
    const std::string small = "engine.zero_optimization.stage3_param_persistence_threshold=0";
    const std::string freeze = concat("training.freeze=[\"^", frozen, "\"]");
    const std::string name = concat(type, frozen);
    const std::string seeded =
        concat("engine.pipeline.seed_layers=", std::string_view(type) == "layered" ? "true" : "false");
    losses(1, name + "still", {"engine.optimizer.params.lr=0", seeded});
    const std::vector<double> one = losses(1, name + "one", {freeze, seeded});
    const std::vector<double> two = losses(2, name + "two", {freeze, layout, small, seeded});
    ASSERT_EQ(two.size(), 4u);
    for (size_t i = 0; i < two.size(); ++i) {
      EXPECT_NEAR(two[i], one[i], 1e-6);
    }
    for (const std::string& out : {name + "one", name + "two"}) {
      EXPECT_TRUE(weight(out, frozen).equal(weight(name + "still", frozen)));
      EXPECT_FALSE(weight(out, trained).equal(weight(name + "still", trained)));
    }
  }
}

TEST_F(RegistryTest, ResolvedSectionsWorkInAnyFolder) {
  write_file_atomically(folder_ / "waves.bin", "1");
  const config::RunConfig run =
      read(write(R"({"type": "split", "says_so": false})", R"({"type": "waves", "file": "waves.bin", "prefetch": 0})"));
  EXPECT_EQ(run.resolved.at("model"), nlohmann::ordered_json::parse(R"({"type": "split", "says_so": false})"));
  EXPECT_EQ(run.resolved.at("data").at("file"), (folder_ / "waves.bin").string());
  EXPECT_EQ(run.data.prefetch, 0);
  const fs::path elsewhere = folder_ / "below" / "again.json";
  fs::create_directories(elsewhere.parent_path());
  write_file_atomically(elsewhere, run.resolved.dump());
  EXPECT_EQ(read(elsewhere).resolved, run.resolved);
}

TEST_F(RegistryTest, ANameIsRegisteredOnce) {
  Registry types;
  const auto read_nothing = [](Keys&) { return [](const DataContext&) { return data::Datasets(); }; };
  types.data("mine", read_nothing);
  EXPECT_THROW(types.data("mine", read_nothing), InputError);
  EXPECT_THROW(types.data("text", read_nothing), InputError);
  EXPECT_THROW(types.data("", read_nothing), InputError);
  EXPECT_THROW(types.model("gpt", nullptr), InputError);
}

} // namespace
} // namespace trireme::train
