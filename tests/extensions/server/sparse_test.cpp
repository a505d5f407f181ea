// Rows of embeddings: what is stepped, what travels, and that workers have the servers' values at any time.
#include "server_job.h"

#include <trireme/extensions/server/servers.h>
#include <trireme/extensions/server/sparse_rows.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <gmock/gmock.h>

#include <cstring>
#include <numeric>
#include <set>

namespace trireme::engine {
namespace {

using parallel::ServerOptions;
using test::ServerJob;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kWords = 300;
constexpr int64_t kWidth = 12;
constexpr int64_t kLength = 5;
constexpr int64_t kBatch = 8;
constexpr int kSparseSteps = 20;

/// Short texts, each of a few of the words, and a number that follows from them.
class Texts : public data::Dataset {
 public:
  int64_t size() const override { return 192; }
  static int64_t word(int64_t text, int64_t place) { return (text * 37 + place * place * 11) % kWords; }
  data::Batch get(std::span<const int64_t> indices) const override {
    const auto count = std::ssize(indices);
    at::Tensor words = torch::empty({count, kLength}, torch::kInt64);
    at::Tensor numbers = torch::empty({count, 1});
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t place = 0; place < kLength; ++place) {
        words[i][place] = word(indices[i], place);
      }
      numbers[i][0] = static_cast<double>(indices[i] % 7) / 7;
    }
    return {{words}, {numbers}, count};
  }
  std::string describe() const override { return "texts"; }
  /// Of the texts of a worker in a step, or of all workers.
  static std::set<int64_t> words_of(int step, int64_t first, int64_t stride) {
    std::set<int64_t> words;
    for (int64_t i = first; i < kBatch; i += stride) {
      for (int64_t place = 0; place < kLength; ++place) {
        words.insert(word((step * kBatch + i) % 192, place));
      }
    }
    return words;
  }
};

struct BagImpl : torch::nn::Module {
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear out{nullptr};
  BagImpl() {
    torch::manual_seed(5);
    words = register_module("words", torch::nn::Embedding(kWords, kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, 1));
  }
  at::Tensor loss(const data::Batch& batch) {
    return (out->forward(words->forward(batch.input()).mean(1)) - batch.target()).pow(2).mean();
  }
};
TORCH_MODULE(Bag);

config::EngineConfig config_of(const optim::Rule& rule, double clipping) {
  config::EngineConfig config = small_config(kBatch, 1, clipping);
  config.optimizer->rule = rule;
  return config;
}

InitializeOptions worker_of(const ServerJob& job, int number, const Bag& model, const config::EngineConfig& config) {
  models::Gpt none(small_gpt());
  InitializeOptions options = job.engine_options(number, none, config);
  options.model = model.ptr();
  options.loss = [bag = model](const data::Batch& batch) mutable { return bag->loss(batch); };
  options.training_data = std::make_shared<Texts>();
  return options;
}

ServerOptions options_of(int servers, bool sparse = true, ServerOptions::Mode mode = ServerOptions::Mode::sync) {
  ServerOptions options;
  options.servers = servers;
  options.mode = mode;
  if (sparse) {
    options.sparse_rows = {"words\\."};
  }
  return options;
}

/// Trains 20 steps with libtorch alone: the whole batch in one process. `step(t)` follows backward.
void train_alone(Bag& model, double clipping, const std::function<void(int step)>& step, std::vector<double>& losses) {
  for (int t = 0; t < kSparseSteps; ++t) {
    std::vector<int64_t> indices(kBatch);
    std::iota(indices.begin(), indices.end(), t * kBatch);
    for (int64_t& index : indices) {
      index %= 192;
    }
    model->zero_grad();
    const at::Tensor loss = model->loss(Texts().get(indices));
    loss.backward();
    if (clipping > 0) {
      torch::nn::utils::clip_grad_norm_(model->parameters(), clipping);
    }
    const torch::NoGradGuard no_grad;
    step(t);
    losses.push_back(loss.item<double>());
  }
}

void expect_near(const Bag& found, const Bag& expected, double most) {
  for (const auto& item : expected->named_parameters()) {
    const at::Tensor here = found->named_parameters()[item.key()].detach();
    EXPECT_LE((here - item.value().detach()).abs().max().item<double>(), most) << item.key();
  }
}

class SparseRowsTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Servers, SparseRowsTest, testing::Values(1, 2, 3),
                         [](const auto& info) { return concat(info.param, "servers"); });

// Without momentum and weight decay a row without a gradient stays as it is in any case.
TEST_P(SparseRowsTest, PlainSgdEqualsTheDenseOne) {
  constexpr double kClipping = 0.05; // it clips
  ServerJob job(2, options_of(GetParam()));
  EXPECT_THAT(job.run([&](int number, comm::World& world) {
    Bag expected;
    std::vector<double> losses;
    torch::optim::SGD sgd(expected->parameters(), torch::optim::SGDOptions(0.5));
    train_alone(expected, kClipping, [&](int) { sgd.step(); }, losses);
    Bag model;
    const Initialized made =
        initialize(world, worker_of(job, number, model, config_of(optim::SgdOptions{.lr = 0.5}, kClipping)));
    for (int t = 0; t < kSparseSteps; ++t) {
      EXPECT_NEAR(made.engine->train_batch().item<double>(), losses[t], 1e-5 * losses[t]) << "step " << t;
    }
    expect_near(model, expected, 2e-6); // of every worker, rows that only the other one has touched too
  }),
              IsEmpty());
}

// AdamW of the rows that have a gradient, as torch.optim.SparseAdam (whose eps is that of a step without bias
// correction, and which has no decay).
TEST_P(SparseRowsTest, AdamIsLazy) {
  constexpr double kLr = 0.01, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kDecay = 0.1;
  ServerJob job(2, options_of(GetParam()));
  EXPECT_THAT(job.run([&](int number, comm::World& world) {
    Bag lazy;
    std::map<std::string, std::pair<at::Tensor, at::Tensor>> moments;
    for (const auto& item : lazy->named_parameters()) {
      moments[item.key()] = {torch::zeros_like(item.value()), torch::zeros_like(item.value())};
    }
    std::vector<double> losses;
    train_alone(
        lazy, 0,
        [&](int t) {
          const auto set = Texts::words_of(t, 0, 1);
          const at::Tensor rows = torch::tensor(std::vector<int64_t>(set.begin(), set.end()));
          for (auto& item : lazy->named_parameters()) {
            auto& [m, v] = moments[item.key()];
            at::Tensor p = item.value().detach();
            const bool some = item.key() == "words.weight";
            const auto part = [&](const at::Tensor& whole) { return some ? whole.index_select(0, rows) : whole; };
            const at::Tensor g = part(item.value().grad());
            const at::Tensor m1 = part(m) * kBeta1 + g * (1 - kBeta1);
            const at::Tensor v1 = part(v) * kBeta2 + g * g * (1 - kBeta2);
            const at::Tensor p1 =
                part(p) * (1 - kLr * kDecay) -
                kLr * (m1 / (1 - std::pow(kBeta1, t + 1))) / ((v1 / (1 - std::pow(kBeta2, t + 1))).sqrt() + kEps);
            some ? m.index_copy_(0, rows, m1) : m.copy_(m1);
            some ? v.index_copy_(0, rows, v1) : v.copy_(v1);
            some ? p.index_copy_(0, rows, p1) : p.copy_(p1);
          }
        },
        losses);
    Bag dense;
    std::vector<double> dense_losses;
    torch::optim::AdamW adam(dense->parameters(),
                             torch::optim::AdamWOptions(kLr).betas({kBeta1, kBeta2}).eps(kEps).weight_decay(kDecay));
    train_alone(dense, 0, [&](int) { adam.step(); }, dense_losses);
    EXPECT_GT((dense->words->weight - lazy->words->weight).abs().max().item<double>(), 1e-2)
        << "the two would be the same";
    Bag model;
    const optim::AdamOptions rule{.lr = kLr, .beta1 = kBeta1, .beta2 = kBeta2, .eps = kEps, .weight_decay = kDecay};
    const Initialized made = initialize(world, worker_of(job, number, model, config_of(rule, 0)));
    for (int t = 0; t < kSparseSteps; ++t) {
      EXPECT_NEAR(made.engine->train_batch().item<double>(), losses[t], 1e-5 * losses[t]) << "step " << t;
    }
    expect_near(model, lazy, 2e-5);
  }),
              IsEmpty());
}

// The same bits as with dense gradients, from the same kernels; in bf16 too, where masters are on the servers.
TEST(SparseRowsBitsTest, WhatLeavesRowsWithoutAGradientAloneHasTheBitsOfTheDenseOne) {
  const std::pair<precision::Type, optim::Rule> cases[] = {{precision::Type::fp32, optim::SgdOptions{.lr = 0.5}},
                                                           {precision::Type::bf16, optim::SgdOptions{.lr = 0.5}},
                                                           {precision::Type::fp32, optim::AdagradOptions{.lr = 0.1}}};
  for (const auto& [type, rule] : cases) {
    std::vector<std::string> values;
    for (const bool sparse : {false, true}) {
      ServerJob job(2, options_of(2, sparse));
      EXPECT_THAT(job.run([&](int number, comm::World& world) {
        Bag model;
        config::EngineConfig config = config_of(rule, 0); // norms are added up in another order
        config.precision.compute = type;
        const Initialized made = initialize(world, worker_of(job, number, model, config));
        for (int t = 0; t < kSparseSteps; ++t) {
          made.engine->train_batch();
        }
        std::string text;
        for (const at::Tensor& parameter : model->parameters()) {
          text.append(static_cast<const char*>(parameter.const_data_ptr()), parameter.nbytes());
        }
        write_file_atomically(job.folder() / concat("values", number), text);
      }),
                  IsEmpty());
      values.push_back(read_file(job.folder() / "values0"));
      EXPECT_EQ(values.back(), read_file(job.folder() / "values1"));
    }
    EXPECT_TRUE(values[0] == values[1]) << static_cast<int>(type) << ' ' << rule.index();
  }
}

int64_t padded(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Of the embedding: for each row that the worker's texts have, the row and 8 bytes.
TEST(SparseRowsBytesTest, TheRowsOfTheBatchTravelAndNoOthers) {
  constexpr int64_t kDense = 64 + 64; // weight and bias of the linear layer
  ServerJob job(2, options_of(1));
  EXPECT_THAT(job.run([&](int number, comm::World& world) {
    Bag model;
    const Initialized made =
        initialize(world, worker_of(job, number, model, config_of(optim::SgdOptions{.lr = 0.1}, 0)));
    int64_t before = made.engine->bytes_sent();
    int64_t all = 0;
    for (int t = 0; t < kSparseSteps; ++t) {
      made.engine->train_batch();
      const int64_t sent = made.engine->bytes_sent() - before;
      before += sent;
      all += sent;
      const auto rows = std::ssize(Texts::words_of(t, number, 2));
      EXPECT_EQ(sent, kDense + padded(8 * rows) + padded(4 * kWidth * rows)) << "step " << t;
    }
    EXPECT_LT(all, kSparseSteps * (kDense + 4 * kWords * kWidth) / 10) << "a tenth of the dense gradient";
  }),
              IsEmpty());
}

// A head that shares the embedding's weight gives every row a gradient: all are stepped, as they are without
// "sparse_rows".
TEST(SparseRowsTiedTest, ATiedEmbeddingIsDenseAndSaidToBe) {
  ServerOptions options;
  options.servers = 2;
  options.sparse_rows = {"transformer.wte"};
  ServerJob job(2, options);
  EXPECT_THAT(job.run([&](int number, comm::World& world) {
    models::Gpt model(small_gpt());
    testing::internal::CaptureStderr();
    const Initialized made = initialize(world, job.engine_options(number, model, small_config(kZeroBatch, 1)));
    const std::vector<double> losses = plain_losses(kZeroBatch, 6, 1.0);
    for (int step = 0; step < 6; ++step) {
      EXPECT_NEAR(made.engine->train_batch().item<double>(), losses[step], 1e-5 * losses[step]) << "step " << step;
    }
    const std::string said = testing::internal::GetCapturedStderr();
    const std::string warning = "all 31 rows have a gradient";
    const size_t first = said.find(warning);
    EXPECT_EQ(first != std::string::npos, number == 0) << said;
    EXPECT_TRUE(first == std::string::npos || said.find(warning, first + 1) == std::string::npos) << "once: " << said;
  }),
              IsEmpty());
}

TEST(SparseRowsRefusalTest, APatternNamesParametersWithRows) {
  for (const auto& [pattern, error] :
       {std::pair("word$", "matches no parameter"), std::pair("out\\.bias", "has no rows: 1 dimensions"),
        std::pair("eight", "matches no parameter")}) {
    ServerOptions options = options_of(1);
    options.sparse_rows = {pattern};
    ServerJob job(1, options);
    const auto failed = job.run([&](int number, comm::World& world) {
      Bag model;
      try {
        const Initialized made = initialize(world, worker_of(job, number, model, config_of(optim::SgdOptions{}, 0)));
        ADD_FAILURE() << pattern;
      } catch (const InputError& refused) {
        EXPECT_THAT(refused.what(), HasSubstr(error));
      }
      parallel::server::Servers(job.worker(number), {{.name = "w", .shape = {2}}}, {{"type", "SGD"}})
          .leave(); // the server waits for somebody
    });
    EXPECT_THAT(failed, IsEmpty()) << pattern;
  }
}

} // namespace
} // namespace trireme::engine

namespace trireme::parallel::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(RowsWithValuesTest, AreThoseThatAreNotZero) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    at::Tensor rows = torch::zeros({1000, 37}, type);
    rows[3][36] = 1e-4;
    rows[500].fill_(-0.0);
    rows[501][0] = std::numeric_limits<double>::quiet_NaN();
    rows[999][5] = -1;
    const std::vector<int64_t> expected = {3, 501, 999};
    EXPECT_TRUE(rows_with_values(rows).equal(torch::tensor(expected))) << type;
    EXPECT_TRUE(rows_with_values(rows.t().contiguous().t()).equal(torch::tensor(expected)))
        << type << ", by ATen's operators";
  }
  EXPECT_EQ(rows_with_values(torch::zeros({0, 4})).numel(), 0);
  EXPECT_EQ(rows_with_values(torch::zeros({4, 0})).numel(), 0);
}

/// A worker with a table of 64 rows and a vector, and what it has sent and received since it was asked last.
struct Worker {
  Worker(const std::string& address, int number,
         const nlohmann::json& optimizer = {{"type", "SGD"}, {"params", {{"lr", 1.0}}}})
      : servers({.addresses = {address}, .access = {}, .worker = number, .workers = 2},
                {{.name = "table", .shape = {64, 4}, .sparse = true}, {.name = "v", .shape = {4}}}, optimizer) {}
  Servers::TensorOf values() {
    return [this](int64_t parameter) { return parameter == 0 ? table : v; };
  }
  void step(const std::vector<int64_t>& rows, double gradient = 1) {
    at::Tensor of_table = torch::zeros({64, 4});
    for (const int64_t row : rows) {
      of_table[row].fill_(gradient);
    }
    servers.push_pull([&](int64_t parameter) { return parameter == 0 ? of_table : torch::zeros({4}); }, 0,
                      {.lr = 1.0, .betas = {}, .factor = 1.0}, values());
  }
  std::pair<int64_t, int64_t> travelled() {
    const std::pair now(servers.bytes_sent(), servers.bytes_received());
    const std::pair since(now.first - before.first, now.second - before.second);
    before = now;
    return since;
  }
  at::Tensor table = torch::zeros({64, 4});
  at::Tensor v = torch::zeros({4});
  std::pair<int64_t, int64_t> before;
  Servers servers;
};

void with_rows_server(const std::function<void(const std::string& address)>& body) {
  ServerOptions options;
  options.mode = ServerOptions::Mode::async;
  EXPECT_THAT(test::with_server(options, body), IsEmpty());
}

constexpr int64_t bytes_of_rows(int64_t rows) {
  return 64 + (8 * rows + 63) / 64 * 64 + (16 * rows + 63) / 64 * 64; // `v` before them
}

// Nobody waits for anybody: a worker takes what others have changed since it took values last.
TEST(SparsePullTest, AWorkerGetsTheRowsThatHaveChangedSinceItsLastValues) {
  with_rows_server([](const std::string& address) {
    Worker one(address, 0);
    Worker two(address, 1);
    one.servers.initialize(one.values());
    one.servers.pull(one.values());
    two.servers.pull(two.values());
    one.travelled();
    two.travelled();
    one.step({3, 7, 63});
    EXPECT_EQ(one.travelled(), std::pair(bytes_of_rows(3), bytes_of_rows(3)));
    two.step({7, 8});
    EXPECT_EQ(two.travelled(), std::pair(bytes_of_rows(2), bytes_of_rows(4))) << "3, 7, 8 and 63";
    EXPECT_EQ(two.table.sum(1).nonzero().numel(), 4);
    EXPECT_EQ(two.table[7][0].item<float>(), -2);
    EXPECT_EQ(two.table[63][0].item<float>(), -1);
    two.step({});
    EXPECT_EQ(two.travelled(), std::pair(bytes_of_rows(0), bytes_of_rows(0)));
    one.step({0});
    EXPECT_EQ(one.travelled(), std::pair(bytes_of_rows(1), bytes_of_rows(3))) << "0, 7 and 8";
    two.step({});
    EXPECT_TRUE(one.table.equal(two.table));
    // What a checkpoint brings is new to all.
    one.travelled();
    two.travelled();
    one.table.fill_(5);
    one.servers.load({"a checkpoint", 3, 3}, one.values(), [](const std::string&, int64_t, int64_t, at::Tensor) {});
    two.step({1}); // of values before the load: dropped
    EXPECT_EQ(two.travelled(), std::pair(bytes_of_rows(1), bytes_of_rows(64)));
    EXPECT_EQ(two.table[1][0].item<float>(), 5);
    two.step({1});
    EXPECT_EQ(two.table[1][0].item<float>(), 4);
    EXPECT_EQ(two.table[0][0].item<float>(), 5);
  });
}

// A worker that knows of no rows pushes all of them; those that are 0 are not stepped, with momentum either.
TEST(SparsePullTest, AWholeGradientIsAGradientOfTheRowsThatAreNotZero) {
  with_rows_server([](const std::string& address) {
    const nlohmann::json momentum = {{"type", "SGD"}, {"params", {{"lr", 1.0}, {"momentum", 0.5}}}};
    Worker one(address, 0, momentum);
    one.servers.initialize(one.values());
    one.servers.pull(one.values());
    const auto plain = rpc::connect(address, {}, rpc::Clock::now() + std::chrono::seconds(20));
    const auto ask = [&](const nlohmann::json& header, std::span<const std::byte> body = {},
                         std::span<std::byte> room = {}) {
      return nlohmann::json::parse(
          plain->call(header.dump(), body, room)->wait(rpc::Clock::now() + std::chrono::seconds(20)));
    };
    const nlohmann::json joined = ask({{"op", "join"},
                                       {"worker", 1},
                                       {"workers", 2},
                                       {"parameters", describe(one.servers.parameters())},
                                       {"optimizer", momentum}});
    ASSERT_EQ(joined.at("status"), "ok") << joined;
    ASSERT_EQ(joined.at("bytes"), 64 + 64 * 16);
    std::vector<float> gradient(16 + 64 * 4), values(gradient.size());
    const auto bytes = std::as_bytes(std::span(gradient));
    const auto room = std::as_writable_bytes(std::span(values));
    const auto row = [&](const std::vector<float>& all, int number) {
      return std::span(all).subspan(16 + 4 * number, 4);
    };
    gradient[16 + 4 * 9] = 1; // row 9
    EXPECT_EQ(ask({{"op", "push_pull"}, {"worker", 1}, {"clock", 0}}, bytes, room).at("status"), "accepted");
    EXPECT_THAT(row(values, 9), ElementsAre(-1, 0, 0, 0));
    one.step({4});
    EXPECT_EQ(ask({{"op", "push_pull"}, {"worker", 1}, {"clock", 1}}, bytes, room).at("status"), "accepted");
    EXPECT_THAT(row(values, 9), ElementsAre(-2.5, 0, 0, 0))
        << "one step of momentum, though there were two of the optimizer";
    EXPECT_THAT(row(values, 4), ElementsAre(-1, -1, -1, -1)) << "its momentum waits for its next gradient";
    // What is no gradient of rows.
    const auto refusal = [&](const nlohmann::json& rows, const std::vector<int64_t>& numbers, size_t length) {
      std::vector<std::byte> body(length);
      std::memcpy(body.data() + 64, numbers.data(), numbers.size() * 8);
      const nlohmann::json reply = ask({{"op", "push_pull"}, {"worker", 1}, {"clock", 2}, {"rows", rows}}, body, room);
      return reply.at("status") == "refused" ? reply.at("error").get<std::string>() : "accepted";
    };
    const auto length = [](int64_t rows) { return static_cast<size_t>(bytes_of_rows(rows)); };
    EXPECT_THAT(refusal({2}, {1, 64}, length(2)), testing::HasSubstr("must ascend from 0 to less than 64"));
    EXPECT_THAT(refusal({2}, {-1, 5}, length(2)), testing::HasSubstr("must ascend"));
    EXPECT_THAT(refusal({2}, {5, 5}, length(2)), testing::HasSubstr("must ascend"));
    EXPECT_THAT(refusal({2}, {5, 6}, length(3) + 64), testing::HasSubstr("for these rows"));
    EXPECT_THAT(refusal({65}, {}, length(65)), testing::HasSubstr("65 rows of \"table\"; this server has 64"));
    EXPECT_THAT(refusal({1, 1}, {}, length(1)), testing::HasSubstr("row counts for 2 sparse pieces"));
    EXPECT_THAT(refusal("all", {}, length(1)), testing::HasSubstr("header"));
    EXPECT_EQ(refusal({2}, {5, 6}, length(2)), "accepted");
    EXPECT_EQ(ask({{"op", "pull"}, {"clock", 0}, {"have", "most"}}, {}, room).at("status"), "refused");
    EXPECT_EQ(ask({{"op", "pull"}, {"clock", 0}, {"have", 0}}, {}, room.first(64)).at("status"), "refused")
        << "no room";
  });
}

} // namespace
} // namespace trireme::parallel::server
