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

using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const std::string& asked, int local_size = 1, int gpus = count(at::kCUDA)) {
  try {
    choose_among(gpus, asked, 0, local_size);
  } catch (const InputError& error) {
    return error.what();
  }
  return "chosen";
}

TEST(ChooseTest, TheWords) {
  for (const char* word : {"auto", "cpu", "cuda", "cuda:0", "cuda:127"}) {
    EXPECT_TRUE(is_choice(word)) << word;
  }
  for (const char* word :
       {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda:128", "cuda:99999999999", "CUDA"}) {
    EXPECT_FALSE(is_choice(word)) << word;
  }
  EXPECT_EQ(gpu_number("cuda:12"), 12);
  EXPECT_THAT(refusal("gpu"), HasSubstr("\"gpu\" is not a supported device"));
}

TEST(ChooseTest, TheEnvironmentSaysWhatAutoIs) {
  ::setenv("TRIREME_DEVICE", "cuda:127", 1);
  EXPECT_THAT(refusal("auto"), HasSubstr("device \"cuda:127\" is not available"));
  EXPECT_TRUE(choose("cpu", 0, 1).is_cpu());
  ::setenv("TRIREME_DEVICE", "gpu", 1);
  EXPECT_THAT(refusal("auto"), HasSubstr("\"gpu\" is not a supported device"));
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
    EXPECT_THAT(refusal("cuda"), HasSubstr("device \"cuda\" is not available: libtorch sees no GPU"));
  } else {
    EXPECT_EQ(choose("auto", gpus - 1, gpus), at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpus - 1)));
    EXPECT_THAT(refusal("auto", gpus + 1), HasSubstr("ranks and libtorch sees"));
  }
}

at::Device gpu(int index) {
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

TEST(ChooseTest, EachRankOfAHostHasAGpuOfItsOwn) {
  ::unsetenv("TRIREME_DEVICE");
  for (const char* word : {"auto", "cuda"}) {
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(choose_among(4, word, rank, 4), gpu(rank)) << word;
    }
    EXPECT_EQ(choose_among(4, word, 1, 2), gpu(1)) << "GPUs may be left over";
    EXPECT_THAT(refusal(word, 5, 4), AllOf(HasSubstr("this host has 5 ranks and libtorch sees 4 GPUs"),
                                           HasSubstr("Start at most 4 ranks on it")))
        << word;
    EXPECT_THAT(refusal(word, 2, 1), AllOf(HasSubstr("this host has 2 ranks and libtorch sees 1 GPU"),
                                           HasSubstr("Start at most 1 rank on it")))
        << word;
  }
  EXPECT_TRUE(choose_among(4, "cpu", 1, 9).is_cpu());
}

TEST(ChooseTest, AGpuThatIsNamedIsForAllRanks) {
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(choose_among(2, "cuda:1", rank, 3), gpu(1));
  }
  EXPECT_THAT(refusal("cuda:2", 1, 2),
              AllOf(HasSubstr("device \"cuda:2\" is not available"), HasSubstr("libtorch sees 2 GPUs")));
  EXPECT_THAT(refusal("cuda:1", 1, 1), HasSubstr("libtorch sees 1 GPU."));
}

TEST(ChooseTest, AutoFollowsTheEnvironmentWhereThereAreGpus) {
  ::setenv("TRIREME_DEVICE", "cuda:1", 1);
  EXPECT_EQ(choose_among(2, "auto", 0, 4), gpu(1));
  EXPECT_EQ(choose_among(2, "cuda", 0, 2), gpu(0)) << "a word of the run goes first";
  ::setenv("TRIREME_DEVICE", "cpu", 1);
  EXPECT_TRUE(choose_among(2, "auto", 0, 4).is_cpu());
  ::unsetenv("TRIREME_DEVICE");
}

TEST(UploaderTest, LeavesWhatBelongsOnTheCpu) {
  Uploader uploader;
  const at::Tensor batch = torch::ones({3});
  EXPECT_TRUE(uploader.upload(batch).is_same(batch));
  EXPECT_FALSE(uploader.upload(at::Tensor()).defined());
}

} // namespace
} // namespace trireme::device
