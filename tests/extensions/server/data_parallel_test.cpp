// Servers that wait for all workers equal data parallelism of as many ranks.
#include "server_job.h"

#include <gmock/gmock.h>

#include <sstream>

namespace trireme::engine {
namespace {

using parallel::ServerOptions;
using test::ServerJob;
using testing::IsEmpty;

constexpr int kSteps = 20;
constexpr double kNear = 1e-6;

// Losses, norms and then all parameters of data parallelism, as rank 0 has them.
std::string data_parallel(int ranks, const config::EngineConfig& config) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / concat("trireme_data_parallel_", ::getpid());
  test::on_ranks(ranks, [&](comm::World& world) {
    SmallRun run(world, config);
    std::ostringstream text;
    text.precision(17);
    for (int step = 0; step < kSteps; ++step) {
      const double loss = run.engine().train_batch().item<double>();
      text << loss << ' ' << run.engine().get_global_grad_norm().value() << '\n';
    }
    if (world.rank() == 0) {
      for (const at::Tensor& parameter : run.model->parameters()) {
        text << parameter.detach().norm().item<double>() << '\n';
      }
      write_file_atomically(file, text.str());
    }
  });
  std::string text = read_file(file);
  std::filesystem::remove(file);
  return text;
}

class ServersBesideDataParallelTest : public testing::TestWithParam<std::tuple<int, ServerOptions::Mode>> {};

TEST_P(ServersBesideDataParallelTest, TwentySteps) {
  const auto [workers, mode] = GetParam();
  const config::EngineConfig config = small_config(kZeroBatch, 2);
  const std::string expected = data_parallel(workers, config);
  ServerOptions options;
  options.servers = 2;
  options.mode = mode; // staleness 0 where it is stale
  ServerJob job(workers, options);
  EXPECT_THAT(job.run([&](int number, comm::World& world) {
    models::Gpt model(small_gpt());
    const Initialized made = initialize(world, job.engine_options(number, model, config));
    std::istringstream values(expected);
    double loss = 0, norm = 0;
    for (int step = 0; step < kSteps; ++step) {
      ASSERT_TRUE(values >> loss >> norm);
      EXPECT_NEAR(made.engine->train_batch().item<double>(), loss, kNear * loss) << "step " << step;
      EXPECT_NEAR(made.engine->get_global_grad_norm().value(), norm, kNear * norm) << "step " << step;
    }
    for (const at::Tensor& parameter : model->parameters()) {
      ASSERT_TRUE(values >> norm);
      EXPECT_NEAR(parameter.detach().norm().item<double>(), norm, kNear * norm);
    }
  }),
              IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, ServersBesideDataParallelTest,
                         testing::Combine(testing::Values(1, 2, 4),
                                          testing::Values(ServerOptions::Mode::sync, ServerOptions::Mode::stale)),
                         [](const auto& info) {
                           return concat(ServerOptions::name(std::get<1>(info.param)), "_", std::get<0>(info.param),
                                         "workers");
                         });

} // namespace
} // namespace trireme::engine
