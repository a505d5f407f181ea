#include <trireme/data/gzip.h>
#include <trireme/data/idx_images.h>

#include "pack.h"
#include "temporary_folder.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string big_endian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string idx(const std::vector<uint32_t>& dims, const std::string& elements) {
  std::string content = big_endian(0x800 + static_cast<uint32_t>(dims.size()));
  for (const uint32_t dim : dims) {
    content += big_endian(dim);
  }
  return content + elements;
}

class IdxImagesTest : public TemporaryFolderTest {
 protected:
  std::string pixels_{
      "\x00\x01\x02\x03\x04\xFF"
      "abcdefghijkl",
      18}; // three of 2 x 3
  std::string images_ = idx({3, 2, 3}, pixels_);
  std::string labels_ = idx({3}, std::string("\x07\x00\xC8", 3));

  std::string refused(const std::string& images, const std::string& labels, int64_t classes = 0) const {
    const auto image_file = write("images.idx", images);
    const auto label_file = write("labels.idx", labels);
    return input_error(
        [&] { IdxImages dataset({.images = {image_file}, .labels = {label_file}, .classes = classes}); });
  }
};

TEST_F(IdxImagesTest, ReadsPlainAndPackedAlike) {
  const auto images = write("images.idx", images_);
  const auto labels = write("labels.idx", labels_);
  const auto packed_images = write("images.gz", pack(images_));
  const auto packed_labels = write("labels", pack(labels_)); // the name does not matter
  for (const auto& [image_file, label_file] :
       {std::pair(images, labels), {packed_images, packed_labels}, {images, packed_labels}}) {
    const IdxImages dataset({.images = {image_file}, .labels = {label_file}, .mean = 0.25, .std = 0.5});
    EXPECT_EQ(dataset.size(), 3);
    EXPECT_EQ(dataset.height(), 2);
    EXPECT_EQ(dataset.width(), 3);
    EXPECT_EQ(dataset.num_labels(), 201);
    const std::vector<int64_t> indices{2, 0};
    const Batch batch = dataset.get(indices);
    EXPECT_EQ(batch.samples, 2);
    EXPECT_EQ(batch.input().sizes(), (std::vector<int64_t>{2, 1, 2, 3}));
    EXPECT_EQ(batch.input().scalar_type(), at::kFloat);
    for (int64_t row = 0; row < 2; ++row) {
      for (int64_t i = 0; i < 6; ++i) {
        const auto pixel =
            static_cast<unsigned char>(pixels_[static_cast<size_t>(6 * indices[static_cast<size_t>(row)] + i)]);
        EXPECT_NEAR(batch.input()[row][0][i / 3][i % 3].item<float>(), (pixel / 255.0 - 0.25) / 0.5, 1e-6);
      }
    }
    EXPECT_TRUE(dataset.get_part(indices, Part::inputs).input().equal(batch.input()));
    EXPECT_TRUE(dataset.get_part(indices, Part::targets).target().equal(batch.target()));
    EXPECT_TRUE(dataset.get_part(indices, Part::inputs).targets.empty());
    EXPECT_TRUE(dataset.get_part(indices, Part::targets).inputs.empty());
    EXPECT_EQ(batch.target()[0].item<int64_t>(), 200);
    EXPECT_EQ(batch.target()[1].item<int64_t>(), 7);
  }
}

TEST_F(IdxImagesTest, SeveralFilesAreOneAfterTheOther) {
  const auto a = write("a", images_);
  const auto a_labels = write("al", labels_);
  const auto b = write("b", pack(idx({1, 2, 3}, "ABCDEF")));
  const auto b_labels = write("bl", idx({1}, "\x05"));
  const IdxImages dataset({.images = {a, b}, .labels = {a_labels, b_labels}});
  EXPECT_EQ(dataset.size(), 4);
  const std::vector<int64_t> last{3};
  EXPECT_FLOAT_EQ(dataset.get(last).input()[0][0][1][2].item<float>(), 'F' / 255.0f);
  EXPECT_EQ(dataset.get(last).target().item<int64_t>(), 5);
  const auto other = write("c", idx({1, 3, 2}, "ABCDEF"));
  EXPECT_THAT(input_error([&] { IdxImages({.images = {a, other}, .labels = {a_labels, b_labels}}); }),
              HasSubstr("3 x 2"));
  EXPECT_THAT(input_error([&] { IdxImages({.images = {a, b}, .labels = {a_labels}}); }),
              HasSubstr("2 files of images, but 1 of labels"));
}

TEST_F(IdxImagesTest, UnusableFilesAreNamedWithWhatWasFound) {
  EXPECT_EQ(refused(images_, labels_), "");
  EXPECT_THAT(refused("", labels_), AllOf(HasSubstr("images.idx"), HasSubstr("nothing")));
  EXPECT_THAT(refused("\x89PNG....", labels_),
              AllOf(HasSubstr("images.idx begins with 89 50 4e 47"), HasSubstr("00 00 08 03")));
  EXPECT_THAT(refused(labels_, images_), HasSubstr("swapped"));
  EXPECT_THAT(refused(images_, images_), AllOf(HasSubstr("labels.idx"), HasSubstr("swapped")));
  EXPECT_THAT(refused(images_.substr(0, 10), labels_), HasSubstr("within its header of 16 bytes"));
  EXPECT_THAT(refused(images_.substr(0, 30), labels_), AllOf(HasSubstr("14 bytes"), HasSubstr("3 * 2 * 3 = 18")));
  EXPECT_THAT(refused(images_ + "x", labels_), HasSubstr("19 bytes"));
  EXPECT_THAT(refused(pack(images_ + "xyz"), labels_), HasSubstr("at least 19 bytes"));
  EXPECT_THAT(refused(idx({2, 2, 3}, pixels_.substr(0, 12)), labels_),
              AllOf(HasSubstr("2 images"), HasSubstr("3 labels")));
  EXPECT_THAT(refused(idx({0, 2, 3}, ""), labels_), HasSubstr("0 * 2 * 3"));
  EXPECT_THAT(refused(idx({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, pixels_), labels_), HasSubstr("an impossible size"));
  EXPECT_THAT(refused(pack(idx({0xFFFFFFFF, 0x7FFFFFF, 1}, pixels_)), labels_), HasSubstr("holds 18 bytes"));
  EXPECT_THAT(refused(images_, labels_, 200), AllOf(HasSubstr("label 2 is 200"), HasSubstr("200 classes")));
  EXPECT_EQ(refused(images_, labels_, 201), "");
  const auto file = write("images.idx", images_);
  for (const double std : {0.0, -1.0, std::nan("")}) {
    EXPECT_THAT(input_error([&] { IdxImages({.images = {file}, .labels = {file}, .std = std}); }), HasSubstr("std"));
  }
}

TEST_F(IdxImagesTest, CutGzipIsRefusedAtEveryLength) {
  const std::string packed = pack(images_);
  for (size_t length = 2; length < packed.size(); ++length) {
    EXPECT_THAT(refused(packed.substr(0, length), labels_), HasSubstr("images.idx ends in the middle")) << length;
  }
  EXPECT_THAT(refused(packed.substr(0, 1), labels_), HasSubstr("begins with 1f"));
}

TEST_F(IdxImagesTest, RandomDamageNeverCrashes) {
  std::mt19937 random(4);
  std::string many;
  for (int i = 0; i < 3000; ++i) {
    many += static_cast<char>(random() % 7);
  }
  const std::string plain = idx({500, 2, 3}, many);
  const std::string packed = pack(plain);
  const std::string labels = idx({500}, std::string(500, '\1'));
  int damaged = 0;
  for (int trial = 0; trial < 300; ++trial) {
    std::string content = trial % 3 == 0 ? plain : packed;
    for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
      const size_t range = trial % 2 == 0 ? 20 : content.size(); // the header more often than its share
      content[random() % range] ^= static_cast<char>(1 << random() % 8);
    }
    if (random() % 4 == 0) {
      content.resize(random() % content.size());
    }
    damaged += refused(content, labels).empty() ? 0 : 1; // anything but InputError escapes and fails
  }
  EXPECT_GT(damaged, 150); // a flipped pixel in a plain file is a pixel
}

TEST_F(IdxImagesTest, ABitFlipInPackedPixelsIsFound) {
  std::string packed = pack(images_);
  packed[packed.size() - 6] ^= 1; // gzip's checksum
  EXPECT_THAT(refused(packed, labels_), AllOf(HasSubstr("images.idx is damaged"), HasSubstr("incorrect data check")));
}

TEST_F(IdxImagesTest, GunzipUnpacksMembersAndStopsAtItsLimit) {
  const std::string first(200000, 'a');
  const std::string second = "the end";
  const std::string packed = pack(first) + pack(second);
  EXPECT_EQ(gunzip(packed, SIZE_MAX, "x"), first + second);
  EXPECT_EQ(gunzip(packed, 5, "x"), "aaaaa");
  EXPECT_EQ(gunzip(packed.substr(0, packed.size() - 20), 1000, "x"), std::string(1000, 'a'));
  EXPECT_EQ(gunzip(pack("") + std::string(10, '\0'), 100, "x"), "");
  EXPECT_THAT(input_error([&] { gunzip("plain text", 100, "x.gz"); }), HasSubstr("x.gz is damaged"));
  EXPECT_THAT(input_error([&] { gunzip("", 100, "x.gz"); }), HasSubstr("x.gz ends"));
}

} // namespace
} // namespace trireme::data
