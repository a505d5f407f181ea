// examples/grpc_worker against parameter servers, alone and beside a worker in C++: the same parameters as a plain
// libtorch loop in one process.
#include <tests/support/folders.h>
#include <trireme/base/file.h>
#include <trireme/extensions/server/parameter_server.h>

#include "tests/extensions/server/rpc/grpc_checks.h"
#include "tests/support/command.h"

#include <gmock/gmock.h>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace trireme::parallel {
namespace {

using Json = nlohmann::json;

constexpr int64_t kInputs = 6;
constexpr int64_t kTargets = 3;
constexpr int64_t kBatch = 8;
constexpr int kSteps = 20;
constexpr double kRate = 0.1;

struct Model : torch::nn::Module {
  Model()
      : first(register_module("0", torch::nn::Linear(kInputs, 16))),
        second(register_module("2", torch::nn::Linear(16, kTargets))) {}
  torch::Tensor loss(const torch::Tensor& samples) {
    const auto output = second(torch::tanh(first(samples.slice(1, 0, kInputs))));
    return torch::mse_loss(output, samples.slice(1, kInputs));
  }
  torch::Tensor flat() const {
    std::vector<torch::Tensor> all;
    for (const auto& parameter : parameters()) {
      all.push_back(parameter.detach().flatten());
    }
    return torch::cat(all);
  }
  torch::nn::Linear first;
  torch::nn::Linear second;
};

void set(Model& model, const torch::Tensor& values) {
  const torch::NoGradGuard no_grad;
  int64_t at = 0;
  for (auto& parameter : model.parameters()) {
    parameter.copy_(values.slice(0, at, at + parameter.numel()).view_as(parameter));
    at += parameter.numel();
  }
}

/// A worker in C++: the same requests over rpc::connect().
class CppWorker {
 public:
  CppWorker(const std::vector<std::string>& addresses, int worker, int workers) {
    Json parameters = Json::array();
    for (const auto& item : model_.named_parameters()) {
      parameters.push_back({{"name", item.key()}, {"shape", item.value().sizes().vec()}, {"dtype", "float32"}});
      by_name_[item.key()] = item.value();
    }
    for (const auto& address : addresses) {
      clients_.push_back(rpc::connect(address, trireme::test::kAccess, trireme::test::soon()));
      const Json join = {{"op", "join"},
                         {"worker", worker},
                         {"workers", workers},
                         {"parameters", parameters},
                         {"optimizer", {{"type", "SGD"}, {"params", {{"lr", kRate}}}}}};
      layouts_.push_back(Json::parse(clients_.back()->call(join.dump())->wait(trireme::test::soon())));
    }
  }
  /// Gives the servers these values, as the first worker of all does.
  void initialize(const torch::Tensor& values) {
    set(model_, values);
    for (size_t i = 0; i < clients_.size(); ++i) {
      std::vector<float> body(layouts_[i].at("bytes").get<size_t>() / 4);
      each_piece(layouts_[i], body, [](torch::Tensor rows, torch::Tensor place) { place.copy_(rows); }, false);
      clients_[i]->call(Json({{"op", "init"}}).dump(), std::as_bytes(std::span(body)))->wait(trireme::test::soon());
    }
  }
  void pull() {
    ask([](int64_t clock) { return Json({{"op", "pull"}, {"clock", clock}}); }, false);
  }
  void step(const torch::Tensor& samples) {
    model_.zero_grad();
    const auto loss = model_.loss(samples);
    loss.backward();
    ask([&](int64_t clock) { return Json({{"op", "push_pull"}, {"clock", clock}, {"loss", loss.item<float>()}}); },
        true);
  }
  void leave() {
    for (auto& client : clients_) {
      client->call(Json({{"op", "leave"}}).dump())->wait(trireme::test::soon());
    }
  }
  torch::Tensor flat() const { return model_.flat(); }

 private:
  template <typename Header>
  void ask(const Header& header, bool with_gradients) {
    std::vector<std::vector<float>> bodies(clients_.size());
    std::vector<std::vector<float>> rooms(clients_.size());
    std::vector<std::shared_ptr<rpc::Call>> calls;
    for (size_t i = 0; i < clients_.size(); ++i) {
      rooms[i].resize(layouts_[i].at("bytes").get<size_t>() / 4);
      if (with_gradients) {
        bodies[i].resize(rooms[i].size());
        each_piece(layouts_[i], bodies[i], [](torch::Tensor rows, torch::Tensor place) { place.copy_(rows); }, true);
      }
      calls.push_back(clients_[i]->call(header(layouts_[i].at("clock")).dump(), std::as_bytes(std::span(bodies[i])),
                                        std::as_writable_bytes(std::span(rooms[i]))));
    }
    for (size_t i = 0; i < clients_.size(); ++i) {
      layouts_[i]["clock"] = Json::parse(calls[i]->wait(trireme::test::soon())).at("clock");
      each_piece(layouts_[i], rooms[i], [](torch::Tensor rows, torch::Tensor place) { rows.copy_(place); }, false);
    }
  }
  template <typename Visit>
  void each_piece(const Json& layout, std::vector<float>& memory, const Visit& visit, bool gradients) {
    const torch::NoGradGuard no_grad;
    for (const auto& piece : layout.at("pieces")) {
      const auto& whole = by_name_.at(piece.at("name"));
      auto rows = (gradients ? whole.grad() : whole.detach())
                      .slice(0, piece.at("rows")[0].get<int64_t>(), piece.at("rows")[1].get<int64_t>());
      visit(rows,
            torch::from_blob(memory.data() + piece.at("offset").get<int64_t>() / 4, rows.sizes(), torch::kFloat32));
    }
  }

  Model model_;
  std::map<std::string, torch::Tensor> by_name_;
  std::vector<std::unique_ptr<rpc::Client>> clients_;
  std::vector<Json> layouts_;
};

class GrpcWorkerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = trireme::test::why_not_grpc(); !why.empty()) {
      GTEST_SKIP() << why;
    }
    folder_ = testing::TempDir() + "trireme_grpc_worker_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    torch::manual_seed(5);
    samples_ = torch::randn({10 * kBatch, kInputs + kTargets});
    write(folder_ + "/secret", trireme::test::kAccess.secret);
    write(folder_ + "/samples", std::string(static_cast<const char*>(samples_.data_ptr()), samples_.nbytes()));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  static void write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  }
  torch::Tensor batch(int step) const { return samples_.slice(0, step % 10 * kBatch, (step % 10 + 1) * kBatch); }

  struct Outcome {
    torch::Tensor parameters;
    std::string output;
    /// By the first server.
    int64_t accepted = 0;
  };
  /// Servers, a worker in Python with this number, and perhaps another one.
  Outcome run(int servers, bool together, int steps, int number = 0,
              const std::function<void(const std::vector<std::string>&)>& other = nullptr) {
    const int workers = other ? 2 : 1;
    std::vector<std::unique_ptr<rpc::Server>> made;
    std::vector<std::string> addresses;
    std::vector<server::Counters> counters(static_cast<size_t>(servers));
    std::vector<std::thread> threads;
    for (int place = 0; place < servers; ++place) {
      made.push_back(rpc::serve("grpc://127.0.0.1:0", trireme::test::kAccess));
      addresses.push_back(made.back()->address());
    }
    for (int place = 0; place < servers; ++place) {
      threads.emplace_back([&, place] {
        server::ParameterServerOptions options;
        options.server.servers = servers;
        options.server.mode = together ? ServerOptions::Mode::sync : ServerOptions::Mode::async;
        options.place = place;
        counters[static_cast<size_t>(place)] = parallel::server::serve(*made[static_cast<size_t>(place)], options);
        made[static_cast<size_t>(place)].reset();
      });
    }
    if (other) {
      threads.emplace_back([&] { other(addresses); });
    }
    std::string list = addresses[0];
    for (int place = 1; place < servers; ++place) {
      list += "," + addresses[static_cast<size_t>(place)];
    }
    const std::string saved = folder_ + "/parameters";
    const auto [status, output] = trireme::test::run_command(
        concat("TRIREME_SECRET_FILE='", folder_, "/secret' timeout -k 5 100 '", test::python(), "' '",
               test::source_dir(), "/examples/grpc_worker/worker.py' --job 'the job' --servers ", list, " --worker ",
               number, "/", workers, " --data '", folder_, "/samples' --batch ", kBatch, " --lr ", kRate, " --steps ",
               steps, " --save '", saved, "'"));
    EXPECT_EQ(status, 0) << output;
    for (auto& thread : threads) {
      thread.join();
    }
    const std::string bytes = status == 0 ? read_file(saved) : "";
    Outcome outcome{torch::empty(static_cast<int64_t>(bytes.size() / 4)), output, counters.front().accepted};
    std::memcpy(outcome.parameters.data_ptr(), bytes.data(), bytes.size());
    return outcome;
  }
  /// A plain loop from these values.
  torch::Tensor plain(const torch::Tensor& initial) {
    Model model;
    set(model, initial);
    torch::optim::SGD optimizer(model.parameters(), kRate);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      model.loss(batch(step)).backward();
      optimizer.step();
    }
    return model.flat();
  }
  static double distance(const torch::Tensor& left, const torch::Tensor& right) {
    return left.sizes() == right.sizes() ? (left - right).abs().max().item<double>() : 1e9;
  }

  std::string folder_;
  torch::Tensor samples_;
};

TEST_F(GrpcWorkerTest, AloneItReachesWhatAPlainLoopReaches) {
  const auto start = run(1, true, 0).parameters;
  const auto expected = plain(start);
  EXPECT_GT(distance(start, expected), 0.01);
  for (const auto& [servers, together] : {std::pair(1, true), std::pair(3, false)}) {
    const auto outcome = run(servers, together, kSteps);
    EXPECT_LE(distance(outcome.parameters, expected), 1e-6) << servers << " servers, together " << together << "\n"
                                                            << outcome.output;
    EXPECT_EQ(outcome.accepted, kSteps);
    EXPECT_THAT(outcome.output, testing::HasSubstr("step 20: loss "));
  }
}

/// What a worker in C++ does, as number `worker` of two.
std::function<void(const std::vector<std::string>&)> in_cpp(int worker, const torch::Tensor& initial,
                                                            const std::function<torch::Tensor(int)>& batch,
                                                            torch::Tensor& result) {
  return [=, &result](const std::vector<std::string>& addresses) {
    CppWorker self(addresses, worker, 2);
    if (worker == 0) {
      self.initialize(initial);
    }
    self.pull();
    for (int step = 0; step < kSteps; ++step) {
      self.step(batch(step).slice(0, worker, kBatch, 2));
    }
    result = self.flat();
    self.leave();
  };
}

TEST_F(GrpcWorkerTest, BesideAWorkerInCppItIsDataParallel) {
  const auto start = run(1, true, 0).parameters;
  const auto expected = plain(start);
  for (const int python : {0, 1}) {
    torch::Tensor of_cpp;
    const auto outcome =
        run(2, true, kSteps, python, in_cpp(1 - python, start, [&](int step) { return batch(step); }, of_cpp));
    EXPECT_LE(distance(outcome.parameters, expected), 1e-6) << outcome.output;
    EXPECT_EQ(distance(outcome.parameters, of_cpp), 0);
    EXPECT_EQ(outcome.accepted, 2 * kSteps);
  }
}

// Nobody waits: each steps what it finds, and every push counts.
TEST_F(GrpcWorkerTest, BesideAWorkerInCppItNeedNotWait) {
  const auto start = run(1, true, 0).parameters;
  const auto loss_of = [&](const torch::Tensor& values) {
    Model model;
    set(model, values);
    return model.loss(samples_).item<double>();
  };
  torch::Tensor of_cpp;
  const auto outcome = run(2, false, kSteps, 0, in_cpp(1, start, [&](int step) { return batch(step); }, of_cpp));
  EXPECT_EQ(outcome.accepted, 2 * kSteps);
  EXPECT_LT(loss_of(outcome.parameters), 0.9 * loss_of(start)) << outcome.output;
  EXPECT_LT(loss_of(of_cpp), loss_of(start));
}

} // namespace
} // namespace trireme::parallel
