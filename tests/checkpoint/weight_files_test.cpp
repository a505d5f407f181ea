#include "folder_fixture.h"

#include <trireme/checkpoint/weight_files.h>

#include <ATen/ATen.h>

namespace trireme::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class WeightFilesTest : public FolderTest {
 protected:
  void write_two() {
    write_safetensors(folder_ / "model-00001-of-00002.safetensors", {{"a", at::ones({2})}, {"b", at::full({3}, 2.0)}});
    write_safetensors(folder_ / "model-00002-of-00002.safetensors", {{"c", at::full({4}, 3.0)}});
  }
  fs::path index(const std::string& weight_map) {
    put_content(folder_ / "model.safetensors.index.json",
                concat(R"({"metadata":{"total_size":36},"weight_map":)", weight_map, "}"));
    return folder_ / "model.safetensors.index.json";
  }
  std::string refusal() {
    return message_of<InputError>([&] { WeightFiles::open(folder_); });
  }
};

TEST_F(WeightFilesTest, ReadsAnIndexOverTwoFiles) {
  write_two();
  const fs::path file = index(
      R"({"a":"model-00001-of-00002.safetensors","b":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors"})");
  for (const fs::path& path : {folder_, file}) {
    const WeightFiles weights = WeightFiles::open(path);
    EXPECT_THAT(weights.names(), ElementsAre("a", "b", "c"));
    EXPECT_TRUE(at::equal(weights.tensor("b"), at::full({3}, 2.0)));
    EXPECT_TRUE(at::equal(weights.tensor("c"), at::full({4}, 3.0)));
    EXPECT_EQ(weights.tensor("c").scalar_type(), at::kFloat);
    EXPECT_FALSE(weights.has("d"));
    EXPECT_THAT(message_of<InputError>([&] { weights.tensor("d"); }), HasSubstr("no tensor \"d\""));
  }
}

TEST_F(WeightFilesTest, ReadsOneFileByNameOrFromItsFolder) {
  write_safetensors(folder_ / "other.safetensors", {{"a", at::ones({2})}});
  EXPECT_TRUE(WeightFiles::open(folder_).has("a"));
  EXPECT_TRUE(WeightFiles::open(folder_ / "other.safetensors").has("a"));
  write_safetensors(folder_ / "model.safetensors", {{"m", at::ones({2})}});
  EXPECT_TRUE(WeightFiles::open(folder_).has("m"));
}

TEST_F(WeightFilesTest, OneFileMayHaveAnyNameButThatOfAPart) {
  for (const char* name : {"model-00001-of-00001.safetensors", "mixture-of-experts.safetensors"}) {
    write_safetensors(folder_ / name, {{"a", at::ones({2})}});
    EXPECT_TRUE(WeightFiles::open(folder_).has("a")) << name;
    fs::remove(folder_ / name);
  }
}

TEST_F(WeightFilesTest, AFolderWithoutWeightsSaysWhatWasLookedFor) {
  EXPECT_THAT(refusal(), HasSubstr("neither model.safetensors nor model.safetensors.index.json"));
}

// What an interrupted download, or git clone without LFS, leaves.
TEST_F(WeightFilesTest, HalfADownloadIsNamed) {
  write_two();
  EXPECT_THAT(refusal(), HasSubstr("2 parts such as model-0000"));
  EXPECT_THAT(refusal(), HasSubstr("no model.safetensors.index.json"));
  fs::remove(folder_ / "model-00001-of-00002.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("has 1 part, model-00002-of-00002.safetensors, and no"));
  put_content(folder_ / "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
  EXPECT_THAT(refusal(), HasSubstr("model.safetensors is a pointer of Git LFS, not the weights"));
}

TEST_F(WeightFilesTest, AnIndexNeverReachesOutOfItsFolder) {
  write_two();
  write_safetensors(folder_.string() + "_secret.safetensors", {{"a", at::ones({2})}});
  const std::string secret = folder_.filename().string() + "_secret.safetensors";
  for (const std::string& name :
       {"../" + secret, folder_.string() + "_secret.safetensors", std::string(".."), std::string("."), std::string(""),
        std::string("sub/model.safetensors"), std::string("..\\\\x"), std::string("a\\u0000b")}) {
    index(concat(R"({"a":")", name, "\"}"));
    EXPECT_THAT(refusal(), HasSubstr("must be in a file of the same folder")) << name;
  }
  fs::remove(folder_.string() + "_secret.safetensors");
}

TEST_F(WeightFilesTest, WrongIndexesAreRefused) {
  write_two();
  index(R"({"a":"model-00002-of-00002.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("which lacks it"));
  index(R"({"a":"model-00003-of-00002.safetensors"})");
  EXPECT_THAT(refusal(),
              HasSubstr("model.safetensors.index.json names model-00003-of-00002.safetensors, which is not beside it"));
  index(R"({"a":7})");
  EXPECT_THAT(refusal(), HasSubstr("found 7"));
  index(R"({"a":"model-00001-of-00002.safetensors","a":"model-00002-of-00002.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("\"a\" appears twice"));
  index("[]");
  EXPECT_THAT(refusal(), HasSubstr("no \"weight_map\""));
  put_content(folder_ / "model.safetensors.index.json", "{");
  EXPECT_THAT(refusal(), HasSubstr("not valid JSON"));
  put_content(folder_ / "model.safetensors.index.json", std::string(200'000, '['));
  EXPECT_THAT(refusal(), HasSubstr("nested deeper"));
}

} // namespace
} // namespace trireme::checkpoint
