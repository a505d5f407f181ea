#include <trireme/data/cifar10.h>

#include "temporary_folder.h"

#include <gmock/gmock.h>

#include <cmath>

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kArea = 32 * 32;

// Value of a pixel in the files that the tests write: different for each image, channel and place.
unsigned char value_of(int image, int64_t channel, int64_t place) {
  return static_cast<unsigned char>(image * 37 + channel * 91 + place * 7 + place / 32);
}

std::string record(int label, int image) {
  std::string out(1, static_cast<char>(label));
  for (int64_t channel = 0; channel < 3; ++channel) {
    for (int64_t place = 0; place < kArea; ++place) {
      out += static_cast<char>(value_of(image, channel, place));
    }
  }
  return out;
}

class Cifar10Test : public TemporaryFolderTest {
 protected:
  std::string refused(const std::string& content) const {
    return input_error([&] { Cifar10 dataset({.files = {write("data_batch_1.bin", content)}}); });
  }
};

TEST_F(Cifar10Test, ReadsTheBinaryVersion) {
  write("data_batch_1.bin", record(3, 0) + record(9, 1));
  write("data_batch_2.bin", record(0, 2));
  Cifar10::Options options;
  options.files = Cifar10::training_files(folder_);
  ASSERT_EQ(options.files.size(), 5u);
  options.files.resize(2);
  const Cifar10 dataset(options);
  EXPECT_EQ(dataset.size(), 3);
  EXPECT_EQ(dataset.describe(), "CIFAR-10: 3 images (data_batch_1.bin and 1 more)");
  const std::vector<int> indices{2, 0, 1};
  const Batch batch = dataset.get(std::vector<int64_t>(indices.begin(), indices.end()));
  EXPECT_EQ(batch.samples, 3);
  ASSERT_EQ(batch.input().sizes(), (std::vector<int64_t>{3, 3, 32, 32}));
  EXPECT_EQ(batch.input().scalar_type(), at::kFloat);
  const auto* labels = batch.target().const_data_ptr<int64_t>();
  EXPECT_EQ((std::vector<int64_t>(labels, labels + 3)), (std::vector<int64_t>{0, 3, 9}));
  const auto* found = batch.input().const_data_ptr<float>();
  double apart = 0;
  for (const int image : indices) {
    for (int64_t channel = 0; channel < 3; ++channel) {
      for (int64_t place = 0; place < kArea; ++place) {
        const auto at = static_cast<size_t>(channel);
        apart = std::max(
            apart, std::abs((value_of(image, channel, place) / 255.0 - options.mean[at]) / options.std[at] - *found++));
      }
    }
  }
  EXPECT_LT(apart, 1e-5);
}

TEST_F(Cifar10Test, OnlyAPartWhereOnlyAPartIsWanted) {
  const Cifar10 dataset({.files = {write("test_batch.bin", record(3, 0) + record(9, 1))}});
  EXPECT_EQ(Cifar10::test_files(folder_), (std::vector{folder_ / "test_batch.bin"}));
  const std::vector<int64_t> indices{1, 0};
  const Batch all = dataset.get(indices);
  const Batch inputs = dataset.get_part(indices, Part::inputs);
  const Batch targets = dataset.get_part(indices, Part::targets);
  EXPECT_TRUE(inputs.targets.empty() && targets.inputs.empty());
  EXPECT_TRUE(inputs.input().equal(all.input()));
  EXPECT_TRUE(targets.target().equal(all.target()));
  EXPECT_EQ(targets.samples, 2);
}

TEST_F(Cifar10Test, SaysWhatIsWrongWithWhichFile) {
  EXPECT_THAT(refused(record(1, 0).substr(0, 3000)),
              AllOf(HasSubstr("data_batch_1.bin"), HasSubstr("3000 bytes"), HasSubstr("3073")));
  EXPECT_THAT(refused(""), AllOf(HasSubstr("data_batch_1.bin"), HasSubstr("0 bytes")));
  EXPECT_THAT(refused(record(1, 0) + record(10, 1)), AllOf(HasSubstr("data_batch_1.bin"), HasSubstr("image 1 is 10")));
  EXPECT_THAT(input_error([&] { Cifar10 dataset({.files = Cifar10::test_files(folder_)}); }),
              HasSubstr("test_batch.bin"));
  EXPECT_THAT(input_error([&] { Cifar10 dataset({}); }), HasSubstr("no CIFAR-10 files"));
  const auto file = write("good.bin", record(1, 0));
  EXPECT_THAT(input_error([&] { Cifar10 dataset({.files = {file}, .std = {1, 0, 1}}); }), HasSubstr("channel 1"));
}

} // namespace
} // namespace trireme::data
