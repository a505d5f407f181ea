// What a run in bf16 has rounded and never trained is taken from the model that it began with.
#include <trireme/checkpoint/safetensors.h>
#include <trireme/generate/base_values.h>
#include <trireme/models/huggingface_families.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>

namespace trireme::generate {
namespace {

namespace fs = std::filesystem;

checkpoint::TensorShard whole(const std::string& name, const char* kind, const at::Tensor& value) {
  return {.name = name,
          .kind = kind,
          .global_shape = value.sizes().vec(),
          .begin = 0,
          .data = value,
          .box_offset = {},
          .box_size = {}};
}

class BaseValuesTest : public testing::Test {
 protected:
  BaseValuesTest() { fs::create_directories(folder_); }
  ~BaseValuesTest() override { fs::remove_all(folder_); }

  // What is exported of the model's norm, whose value in the checkpoint is `saved`.
  at::Tensor exported(const at::Tensor& saved, const fs::path& from, const at::Tensor& master = {}) const {
    std::vector<checkpoint::TensorShard> shards = {whole(kName, "parameter", saved)};
    if (master.defined()) {
      shards.push_back(whole(std::string("master/") + kName, "master", master));
    }
    checkpoint::save(folder_ / "run", "global_step1", comm::Group(), shards);
    const auto opened = checkpoint::Checkpoint::open(folder_ / "run/global_step1");
    at::Tensor value = (master.defined() ? master : saved).to(at::kFloat).clone();
    BaseValues(opened, from, models::llama_family()).put_back(kName, value);
    fs::remove_all(folder_ / "run");
    return value;
  }

  static constexpr const char* kName = "model.norm.weight";
  const fs::path folder_ = fs::path(testing::TempDir()) / ("trireme_base_values_" + std::to_string(::getpid()));
  const at::Tensor base_ = at::linspace(0.9, 1.1, 40);
};

TEST_F(BaseValuesTest, WhatWasNeverTrainedHasItsFirstBits) {
  const fs::path base = folder_ / "base";
  fs::create_directories(base);
  checkpoint::write_safetensors(base / "model.safetensors", {{kName, base_}});
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor rounded = base_.to(type);
    ASSERT_FALSE(rounded.to(at::kFloat).equal(base_));
    EXPECT_TRUE(exported(rounded, base).equal(base_));
    EXPECT_TRUE(exported(rounded, {}).equal(rounded.to(at::kFloat))) << "random weights at the begin";
    EXPECT_TRUE(exported(rounded, folder_ / "gone").equal(rounded.to(at::kFloat)));
    const at::Tensor trained = (base_ + 0.1).to(type);
    EXPECT_TRUE(exported(trained, base).equal(trained.to(at::kFloat))) << "without masters";
    EXPECT_TRUE(exported(rounded, base, base_ + 1e-6).equal(base_ + 1e-6)) << "the master is what was trained";
  }
  EXPECT_TRUE(exported(base_ + 1e-6, base).equal(base_ + 1e-6)) << "in fp32";
}

// A base model of other shapes or without the parameter is another one.
TEST_F(BaseValuesTest, AnotherModelChangesNothing) {
  const fs::path base = folder_ / "base";
  fs::create_directories(base);
  const at::Tensor rounded = base_.to(at::kBFloat16);
  checkpoint::write_safetensors(base / "model.safetensors", {{kName, at::ones({41})}});
  EXPECT_TRUE(exported(rounded, base).equal(rounded.to(at::kFloat)));
  checkpoint::write_safetensors(base / "model.safetensors", {{"model.other.weight", base_}});
  EXPECT_TRUE(exported(rounded, base).equal(rounded.to(at::kFloat)));
}

} // namespace
} // namespace trireme::generate
