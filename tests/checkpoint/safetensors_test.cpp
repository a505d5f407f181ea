#include "folder_fixture.h"

#include <trireme/base/file.h>
#include <trireme/checkpoint/hash.h>
#include <trireme/checkpoint/safetensors.h>

#include <ATen/ATen.h>

#include <cstring>

namespace trireme::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SafetensorsTest : public FolderTest {
 protected:
  fs::path file() const { return folder_ / "model.safetensors"; }
};

const at::ScalarType kAllTypes[] = {at::kFloat,  at::kHalf,         at::kBFloat16,      at::kDouble,
                                    at::kLong,   at::kInt,          at::kShort,         at::kChar,
                                    at::kByte,   at::kBool,         at::kUInt16,        at::kUInt32,
                                    at::kUInt64, at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2};

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  return left.scalar_type() == right.scalar_type() && left.sizes() == right.sizes() &&
         (left.numel() == 0 || std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0);
}

TEST_F(SafetensorsTest, EveryDtypeComesBackBitForBit) {
  std::vector<NamedTensor> tensors;
  for (const at::ScalarType type : kAllTypes) {
    const at::Tensor bits =
        at::randint(0, type == at::kBool ? 2 : 256, {3, 5, static_cast<int64_t>(c10::elementSize(type))}, at::kByte);
    tensors.push_back({dtype_name(type), bits.view(type).squeeze(-1)});
  }
  tensors.push_back({"scalar", at::scalar_tensor(2.5)});
  tensors.push_back({"empty", at::empty({4, 0, 2})});
  const WrittenFile written = write_safetensors(file(), tensors, {{"format", "pt"}, {"quote\"", "line\nbreak"}});
  EXPECT_EQ(written.bytes, fs::file_size(file()));

  const Safetensors read = Safetensors::open(file());
  EXPECT_EQ(read.tensors().size(), tensors.size());
  EXPECT_EQ(read.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"quote\"", "line\nbreak"}}));
  for (const NamedTensor& tensor : tensors) {
    EXPECT_TRUE(same_bytes(read.tensor(tensor.name), tensor.tensor)) << tensor.name;
  }
}

TEST_F(SafetensorsTest, HashIsXxh3OfTheFile) {
  const WrittenFile written = write_safetensors(file(), {{"w", at::randn({700, 1000})}});
  const std::string content = content_of(file());
  EXPECT_EQ(written.hash, hash_of(content.data(), content.size()));
  EXPECT_EQ(written.hash, hash_of_file(file()));
  // Reference value of `xxhsum -H2` for the empty input.
  EXPECT_EQ(hash_of("", 0), "99aa06d3014798d86001c324468d497f");
}

TEST_F(SafetensorsTest, StridedAndNarrowedTensorsAreWrittenInRowMajorOrder) {
  const at::Tensor base = at::arange(24, at::kFloat).view({4, 6});
  write_safetensors(
      file(),
      {{"transposed", base.t()}, {"slice", base.narrow(1, 2, 3)}, {"expanded", base.narrow(1, 0, 1).expand({4, 3})}});
  const Safetensors read = Safetensors::open(file());
  EXPECT_TRUE(at::equal(read.tensor("transposed"), base.t()));
  EXPECT_TRUE(at::equal(read.tensor("slice"), base.narrow(1, 2, 3)));
  EXPECT_TRUE(at::equal(read.tensor("expanded"), base.narrow(1, 0, 1).expand({4, 3})));
}

TEST_F(SafetensorsTest, ViewsAreAlignedAndWithoutCopy) {
  write_safetensors(file(), {{"odd", at::ones({3}, at::kByte)},
                             {"half", at::ones({3}, at::kHalf)},
                             {"w", at::ones({5})},
                             {"d", at::ones({2}, at::kDouble)}});
  const Safetensors read = Safetensors::open(file());
  EXPECT_EQ(read.tensors().front().name, "d");
  for (const TensorInfo& tensor : read.tensors()) {
    const at::Tensor view = read.tensor(tensor.name);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data_ptr()) % view.element_size(), 0U) << tensor.name;
    EXPECT_EQ(view.data_ptr(), read.tensor(tensor.name).data_ptr()) << "each call gives the same memory";
  }
}

TEST_F(SafetensorsTest, UnalignedTensorsOfOtherWritersAreCopied) {
  // A one-byte tensor first, then floats at offset 1; header of 89 bytes, so floats lie at 98.
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  std::string content(8, '\0');
  content[0] = static_cast<char>(header.size());
  const float values[2] = {1.5F, -2.0F};
  content += header + "\x07" + std::string(reinterpret_cast<const char*>(values), 8);
  put_content(file(), content);
  const at::Tensor b = Safetensors::open(file()).tensor("b");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data_ptr()) % 4, 0U);
  EXPECT_TRUE(at::equal(b, at::tensor({1.5F, -2.0F})));
}

TEST_F(SafetensorsTest, ViewsOutliveTheReaderTheFileAndItsReplacement) {
  const at::Tensor old = at::arange(100'000, at::kFloat);
  write_safetensors(file(), {{"w", old}});
  const at::Tensor view = Safetensors::open(file()).tensor("w");
  write_safetensors(file(), {{"w", view.neg()}}); // saving over the file one is reading from
  EXPECT_TRUE(at::equal(view, old));
  EXPECT_TRUE(at::equal(Safetensors::open(file()).tensor("w"), old.neg()));
  fs::remove(file());
  EXPECT_TRUE(at::equal(view, old));
}

TEST_F(SafetensorsTest, WritingToAViewNeverReachesTheFile) {
  write_safetensors(file(), {{"w", at::ones({10})}});
  const std::string before = content_of(file());
  Safetensors::open(file()).tensor("w").fill_(7);
  EXPECT_EQ(content_of(file()), before);
  EXPECT_TRUE(at::equal(Safetensors::open(file()).tensor("w"), at::ones({10})));
}

TEST_F(SafetensorsTest, RangesAreFlat) {
  const at::Tensor whole = at::arange(30, at::kInt).view({5, 6});
  write_safetensors(file(), {{"w", whole}});
  const Safetensors read = Safetensors::open(file());
  EXPECT_TRUE(at::equal(read.range("w", 7, 19), whole.view({-1}).narrow(0, 7, 12)));
  EXPECT_EQ(read.range("w", 30, 30).numel(), 0);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{-1, 3}, {5, 31}, {9, 8}, {INT64_MIN, INT64_MAX}}) {
    EXPECT_THAT(message_of<InputError>([&, b = begin, e = end] { read.range("w", b, e); }),
                HasSubstr("has 30 elements"));
  }
}

TEST_F(SafetensorsTest, UnknownNamesGetTheNearest) {
  write_safetensors(file(), {{"h.0.attn.weight", at::ones({1})}, {"wte", at::ones({1})}});
  EXPECT_THAT(message_of<InputError>([&] { Safetensors::open(file()).tensor("h.0.atn.weight"); }),
              HasSubstr("Did you mean \"h.0.attn.weight\"?"));
}

TEST_F(SafetensorsTest, TenThousandTensorsKeepTheirPlaces) {
  std::vector<NamedTensor> tensors;
  for (int i = 0; i < 10'000; ++i) {
    tensors.push_back({concat("layer.", i, ".weight"), at::full({2, 3}, static_cast<double>(i), at::kFloat)});
  }
  write_safetensors(file(), tensors);
  const Safetensors read = Safetensors::open(file());
  ASSERT_EQ(read.tensors().size(), 10'000U);
  for (const int i : {0, 1, 4321, 9999}) {
    EXPECT_TRUE(
        at::equal(read.tensor(concat("layer.", i, ".weight")), at::full({2, 3}, static_cast<double>(i), at::kFloat)));
  }
}

TEST_F(SafetensorsTest, ALinkUnderTheTemporaryNameIsNotFollowed) {
  put_content(folder_ / "precious", "years");
  fs::create_symlink(folder_ / "precious", temporary_name(file()));
  write_safetensors(file(), {{"w", at::ones({1})}});
  EXPECT_FALSE(fs::is_symlink(file()));
  EXPECT_TRUE(at::equal(Safetensors::open(file()).tensor("w"), at::ones({1})));
  EXPECT_EQ(content_of(folder_ / "precious"), "years");
}

TEST_F(SafetensorsTest, WriterRefusesBeforeTouchingTheFile) {
  write_safetensors(file(), {{"w", at::ones({1})}});
  const std::string before = content_of(file());
  const at::Tensor one = at::ones({1});
  EXPECT_THROW(write_safetensors(file(), {{"w", one}, {"w", one}}), InputError);
  EXPECT_THROW(write_safetensors(file(), {{"__metadata__", one}}), InputError);
  EXPECT_THROW(write_safetensors(file(), {{"w", at::Tensor()}}), InputError);
  EXPECT_THROW(write_safetensors(file(), {{"bad\xff", one}}), InputError);
  EXPECT_THROW(write_safetensors(file(), {{"w", one}}, {{"key", "bad\xff"}}), InputError);
  EXPECT_THAT(message_of<InputError>([&] { write_safetensors(file(), {{"w", at::ones({1}, at::kComplexDouble)}}); }),
              HasSubstr("no dtype for"));
  EXPECT_EQ(content_of(file()), before);
  EXPECT_THAT(message_of<Error>([&] { write_safetensors(folder_ / "absent" / "x", {{"w", one}}); }),
              HasSubstr("No such file"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

} // namespace
} // namespace trireme::checkpoint
