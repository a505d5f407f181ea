// Which device a rank trains on. What is done there is tested on the simulated device, tests/sim_device.
#include <trireme/device/choose.h>

#include <trireme/base/error.h>
#include <trireme/device/options.h>
#include <trireme/device/upload.h>

#include <torch/utils.h>

#include <gmock/gmock.h>

#include <cstdlib>

namespace trireme::device {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& asked, int local_size = 1) {
  try {
    choose(asked, 0, local_size);
  } catch (const InputError& error) {
    return error.what();
  }
  return "chosen";
}

TEST(ChooseTest, TheWords) {
  for (const char* word : {"auto", "cpu", "cuda", "cuda:0", "cuda:127"}) {
    EXPECT_TRUE(is_choice(word)) << word;
  }
  for (const char* word : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda:128", "cuda:99999999999", "CUDA"}) {
    EXPECT_FALSE(is_choice(word)) << word;
  }
  EXPECT_EQ(gpu_number("cuda:12"), 12);
  EXPECT_THAT(refusal("gpu"), HasSubstr("\"gpu\" is not a device that can be asked for"));
}

TEST(ChooseTest, TheEnvironmentSaysWhatAutoIs) {
  ::setenv("TRIREME_DEVICE", "cuda:127", 1);
  EXPECT_THAT(refusal("auto"), HasSubstr("device \"cuda:127\" was asked for"));
  EXPECT_TRUE(choose("cpu", 0, 1).is_cpu());
  ::setenv("TRIREME_DEVICE", "gpu", 1);
  EXPECT_THAT(refusal("auto"), HasSubstr("\"gpu\" is not a device"));
  ::unsetenv("TRIREME_DEVICE");
}

TEST(ChooseTest, TheCpuWhereItIsAskedFor) {
  EXPECT_TRUE(choose("cpu", 3, 8).is_cpu());
}

TEST(ChooseTest, AGpuOnlyWhereThereIsOne) {
  ::unsetenv("TRIREME_DEVICE");
  const int gpus = count(at::kCUDA);
  EXPECT_THAT(refusal("cuda:127"), HasSubstr(gpus == 0 ? "libtorch sees no GPU" : "libtorch sees "));
  if (gpus == 0) {
    EXPECT_TRUE(choose("auto", 1, 2).is_cpu());
    EXPECT_FALSE(accelerator());
    EXPECT_THAT(refusal("cuda"), HasSubstr("device \"cuda\" was asked for, and libtorch sees no GPU"));
  } else {
    EXPECT_EQ(choose("auto", gpus - 1, gpus), at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpus - 1)));
    EXPECT_THAT(refusal("auto", gpus + 1), HasSubstr("ranks and libtorch sees"));
  }
}

TEST(UploaderTest, LeavesWhatBelongsOnTheCpu) {
  Uploader uploader;
  const at::Tensor batch = torch::ones({3});
  EXPECT_TRUE(uploader.upload(batch).is_same(batch));
  EXPECT_FALSE(uploader.upload(at::Tensor()).defined());
}

} // namespace
} // namespace trireme::device
