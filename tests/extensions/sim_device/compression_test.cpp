// What compresses, as a whole, on the simulated device: it learns what it learns on the CPU, its replicas stay one
// model, and nothing races. Scales of ATen's operators differ from the CPU's loops in last bits, so the numbers are not
// the same ones.
#include <tests/sim_device/engine_case.h>

#include <trireme/comm/group.h>

#include <gmock/gmock.h>

namespace trireme::engine {
namespace {

using testing::IsEmpty;

struct Compressing {
  const char* name;
  const char* sections; // of the configuration
  int zero_stage = 0;
  precision::Type type = precision::Type::fp32;
};

std::vector<double> losses_of(comm::World& world, at::Device device, const Compressing& one) {
  Case plain{.name = one.name, .zero_stage = one.zero_stage, .type = one.type};
  InitializeOptions options = options_of(plain, device);
  const config::EngineConfig read =
      config::read_deepspeed(JsonNode::parse(concat(R"({"train_batch_size": 48, )", one.sections, "}"), "test.json"));
  options.config.optimizer = read.optimizer;
  options.config.compression = read.compression;
  const Initialized made = initialize(world, options);
  std::vector<double> losses;
  for (int step = 0; step < 12; ++step) {
    losses.push_back(made.engine->train_batch().item<double>());
  }
  for (const at::Tensor& parameter : made.engine->module().parameters()) {
    EXPECT_EQ(parameter.device().type(), device.type());
    const at::Tensor here = parameter.detach().cpu().to(torch::kFloat32).contiguous().view({-1});
    at::Tensor first = here.clone();
    world.group().broadcast(first, 0).wait();
    EXPECT_TRUE(first.equal(here)) << one.name << ": the ranks have different parameters";
  }
  return losses;
}

TEST(SimDeviceCompressionTest, LearnsAsOnTheCpu) {
  const std::vector<Compressing> all = {
      {"OneBitAdam", R"("optimizer": {"type": "OneBitAdam", "params": {"lr": 0.003, "freeze_step": 4}})"},
      {"OneBitAdamZero", R"("optimizer": {"type": "OneBitAdam", "params": {"lr": 0.003, "freeze_step": 4}})", 1,
       precision::Type::bf16},
      {"OneBitLamb", R"("optimizer": {"type": "OneBitLamb", "params": {"lr": 0.003, "freeze_step": 4}})"},
      {"OneBitLambZero", R"("optimizer": {"type": "OneBitLamb", "params": {"lr": 0.003, "freeze_step": 4}})", 1},
      {"ZeroOneAdam",
       R"("optimizer": {"type": "ZeroOneAdam", "params": {"lr": 0.003, "var_freeze_step": 6, "var_update_scaler": 2, "local_step_scaler": 2, "local_step_clipper": 2}})"},
      {"ZeroOneAdamFp16",
       R"("optimizer": {"type": "ZeroOneAdam", "params": {"lr": 0.003, "var_freeze_step": 6, "var_update_scaler": 2, "local_step_scaler": 2, "local_step_clipper": 2}})",
       0, precision::Type::fp16},
      {"sign",
       R"("optimizer": {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9}}, "gradient_compression": {"kind": "sign"})"},
      {"power_sgd",
       R"("optimizer": {"type": "Lamb", "params": {"lr": 0.03}}, "gradient_compression": {"kind": "power_sgd", "rank": 2})",
       1},
  };
  for (const Compressing& one : all) {
    EXPECT_THAT(test::run_ranks(2,
                                [&](comm::World& world) {
                                  start();
                                  const std::vector<double> cpu = losses_of(world, at::kCPU, one),
                                                            device = losses_of(world, sim::device(), one);
                                  for (size_t step = 0; step < cpu.size(); ++step) {
                                    EXPECT_NEAR(device[step], cpu[step], 0.02 * cpu[step])
                                        << one.name << ", step " << step;
                                  }
                                  EXPECT_LT(device.back(), device.front());
                                  EXPECT_THAT(sim::problems(), IsEmpty());
                                }),
                IsEmpty())
        << one.name;
  }
}

} // namespace
} // namespace trireme::engine
