#include "folder_fixture.h"

#include <trireme/checkpoint/safetensors.h>

#include <ATen/ATen.h>

#include <random>

namespace trireme::checkpoint {
namespace {

using testing::HasSubstr;

// A file of this header and so many bytes of data.
std::string file_of(const std::string& header, size_t data_bytes, int64_t claimed_length = -1) {
  const uint64_t length = claimed_length < 0 ? header.size() : static_cast<uint64_t>(claimed_length);
  std::string content;
  for (int i = 0; i < 8; ++i) {
    content += static_cast<char>(length >> (8 * i) & 0xff);
  }
  return content + header + std::string(data_bytes, '\1');
}

struct Refusal {
  const char* name;
  std::string content;
  /// Must be part of the message.
  const char* says;
};

void PrintTo(const Refusal& refusal, std::ostream* out) {
  *out << refusal.name;
}

const std::string kGood = R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

std::vector<Refusal> refusals() {
  const auto one = [](const std::string& entry) { return concat(R"({"t":)", entry, "}"); };
  const auto deep = [](const std::string& open) {
    std::string text = "{\"t\":";
    for (int i = 0; i < 100'000; ++i) {
      text += open;
    }
    return text;
  };
  return {
      {"Empty", "", "at least 8"},
      {"SevenBytes", std::string(7, 'x'), "at least 8"},
      {"NoHeader", file_of("", 0), "must start with '{'"},
      {"HeaderTooLarge", file_of("{}", 0, 100'000'001), "at most 100000000"},
      {"HeaderLengthHuge", std::string(8, '\xff') + "{}", "at most 100000000"},
      {"HeaderPastTheEnd", file_of("{}", 0, 3), "truncated"},
      {"LeadingSpace", file_of(" {}", 0), "must start with '{'"},
      {"ByteOrderMark", file_of("\xef\xbb\xbf{}", 0), "must start with '{'"},
      {"Array", file_of("[]", 0), "must start with '{'"},
      {"NotJson", file_of("{]", 0), "not valid JSON at byte 2"},
      {"Unfinished", file_of("{\"t\":", 0), "not valid JSON"},
      {"TextAfterTheEnd", file_of("{}{}", 0), "not valid JSON"},
      {"ZeroBytesAfterTheEnd", file_of(std::string("{}\0\0", 4), 0), "not valid JSON"},
      {"NotUtf8", file_of("{\"\xff\":1}", 0), "UTF-8"},
      {"OverlongUtf8", file_of("{\"\xc0\xaf\":1}", 0), "UTF-8"},
      {"TensorTwice",
       file_of(
           R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           2),
       "\"t\" appears twice"},
      {"FieldTwice", file_of(one(R"({"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]})"), 1),
       "\"dtype\" twice"},
      {"MetadataTwice", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "appears twice"},
      {"MetadataKeyTwice", file_of(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "\"a\" appears twice"},
      {"MetadataNumber", file_of(R"({"__metadata__":{"a":1}})", 0), "must map text to text"},
      {"MetadataObject", file_of(R"({"__metadata__":{"a":{}}})", 0), "must map text to text"},
      {"MetadataText", file_of(R"({"__metadata__":"a"})", 0), "must map text to text"},
      {"NotAnObject", file_of(one("3"), 0), "tensor \"t\""},
      {"Null", file_of(one("null"), 0), "tensor \"t\""},
      {"MissingDtype", file_of(one(R"({"shape":[1],"data_offsets":[0,1]})"), 1), "lacks one of"},
      {"MissingShape", file_of(one(R"({"dtype":"U8","data_offsets":[0,1]})"), 1), "lacks one of"},
      {"MissingOffsets", file_of(one(R"({"dtype":"U8","shape":[1]})"), 1), "lacks one of"},
      {"OneOffset", file_of(one(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})"), 1), "lacks one of"},
      {"ThreeOffsets", file_of(one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,2]})"), 1), "more than two"},
      {"UnknownField", file_of(one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"code":"x"})"), 1),
       "unknown field \"code\""},
      {"UnknownDtype", file_of(one(R"({"dtype":"F7","shape":[1],"data_offsets":[0,1]})"), 1), "\"F7\""},
      {"NegativeShape", file_of(one(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})"), 1), "the number -1"},
      {"FractionalShape", file_of(one(R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})"), 1), "the number 1.0"},
      {"TextShape", file_of(one(R"({"dtype":"U8","shape":["1"],"data_offsets":[0,1]})"), 1), "a string"},
      {"NestedShape", file_of(one(R"({"dtype":"U8","shape":[[1]],"data_offsets":[0,1]})"), 1), "an array"},
      {"ObjectInShape", file_of(one(R"({"dtype":"U8","shape":[{}],"data_offsets":[0,1]})"), 1), "an object"},
      {"DtypeArray", file_of(one(R"({"dtype":["U8"],"shape":[1],"data_offsets":[0,1]})"), 1), "an array"},
      {"ShapeOverflow", file_of(one(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})"), 0),
       "overflows"},
      {"ShapeOverflowBehindZero",
       file_of(one(R"({"dtype":"F32","shape":[0,4611686018427387904,4],"data_offsets":[0,0]})"), 0), "overflows"},
      {"BytesOverflow", file_of(one(R"({"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]})"), 0),
       "overflows"},
      {"NumberOverflow", file_of(one(R"({"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,0]})"), 0),
       "the number"},
      {"ShapeAboveInt64", file_of(one(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,0]})"), 0),
       "too large"},
      {"WrongBytes", file_of(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"), 4), "need 8"},
      {"Backwards", file_of(one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})"), 1), "must start at 0"},
      {"HoleAtTheStart", file_of(one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})"), 2), "must start at 0"},
      {"Hole",
       file_of(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
           3),
       "must start at 1"},
      {"Overlap",
       file_of(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"t":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
           3),
       "must start at 2"},
      {"TruncatedData", file_of(kGood, 7), "only 7 (truncated?)"},
      {"DataAfterTheLastTensor", file_of(kGood, 9), "account for 8"},
      {"OnlyData", file_of("{}", 1), "account for 0"},
      {"DeepArrays", file_of(deep("["), 0), "an array"},
      {"DeepObjects", file_of(deep("{\"a\":"), 0), "unknown field"},
      {"Zip", "PK\x03\x04" + std::string(100, 'x'), "at most"},
  };
}

class SafetensorsRefusalTest : public FolderTest, public testing::WithParamInterface<Refusal> {};

TEST_P(SafetensorsRefusalTest, NamesTheFileAndTheReason) {
  const fs::path file = folder_ / "model.safetensors";
  put_content(file, GetParam().content);
  const std::string message = message_of<InputError>([&] { Safetensors::open(file); });
  EXPECT_THAT(message, HasSubstr(GetParam().says));
  EXPECT_THAT(message, HasSubstr(file.string()));
}

INSTANTIATE_TEST_SUITE_P(All, SafetensorsRefusalTest, testing::ValuesIn(refusals()),
                         [](const auto& info) { return std::string(info.param.name); });

class SafetensorsDamageTest : public FolderTest {
 protected:
  // Opens and reads everything; true when it was accepted.
  bool read_all(const std::string& content) {
    const fs::path file = folder_ / "model.safetensors";
    put_content(file, content);
    try {
      const Safetensors read = Safetensors::open(file);
      for (const TensorInfo& tensor : read.tensors()) {
        read.tensor(tensor.name).clone();
      }
      return true;
    } catch (const InputError&) {
      return false;
    }
  }
};

TEST_F(SafetensorsDamageTest, GoodFileIsAcceptedAndPaddedWithSpaces) {
  EXPECT_TRUE(read_all(file_of(kGood, 8)));
  EXPECT_TRUE(read_all(file_of(kGood + "   ", 8)));
  EXPECT_TRUE(read_all(file_of("{}", 0)));
}

TEST_F(SafetensorsDamageTest, NoTruncationAndNoExtensionIsAccepted) {
  write_safetensors(folder_ / "good", {{"a", at::ones({3})}, {"b", at::ones({2, 2}, at::kHalf)}});
  const std::string content = content_of(folder_ / "good");
  ASSERT_TRUE(read_all(content));
  for (size_t length = 0; length < content.size(); ++length) {
    ASSERT_FALSE(read_all(content.substr(0, length))) << length;
  }
  EXPECT_FALSE(read_all(content + '\0'));
}

TEST_F(SafetensorsDamageTest, RandomDamageToTheHeaderNeverCrashes) {
  write_safetensors(folder_ / "good", {{"a", at::ones({3})}, {"b", at::ones({2, 2}, at::kBool)}}, {{"k", "v"}});
  const std::string content = content_of(folder_ / "good");
  std::mt19937 random(3);
  int num_refused = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::string damaged = content;
    for (unsigned i = 0; i <= random() % 3; ++i) {
      const size_t at = random() % damaged.size();
      switch (random() % 3) {
        case 0:
          damaged[at] = static_cast<char>(damaged[at] ^ 1 << random() % 8);
          break;
        case 1:
          damaged[at] = "{}[]\",:09-ex"[random() % 12];
          break;
        default:
          damaged.erase(at, 1 + random() % 4);
      }
    }
    num_refused += read_all(damaged) ? 0 : 1;
  }
  EXPECT_GT(num_refused, 1500); // the rest hit tensor bytes, names or the metadata
}

TEST_F(SafetensorsDamageTest, BoolBytesOtherThanZeroAndOneAreRefused) {
  const std::string content = file_of(R"({"t":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", 0) + "\x01\x02";
  put_content(folder_ / "model.safetensors", content);
  const Safetensors read = Safetensors::open(folder_ / "model.safetensors");
  EXPECT_THAT(message_of<InputError>([&] { read.tensor("t"); }), HasSubstr("other than 0 and 1"));
}

TEST_F(SafetensorsDamageTest, ATensorThatIsCutOffAfterOpeningIsRefused) {
  const fs::path file = folder_ / "cut.safetensors";
  write_safetensors(file, {{"a", at::ones({4096})}, {"b", at::ones({4096})}}); // 16 KiB each
  const Safetensors read = Safetensors::open(file);
  fs::resize_file(file, fs::file_size(file) - 16'000);
  EXPECT_TRUE(read.tensor("a").equal(at::ones({4096})));
  EXPECT_TRUE(read.range("b", 0, 8).equal(at::ones({8})));
  EXPECT_THAT(message_of<InputError>([&] { read.tensor("b"); }),
              HasSubstr("\"b\" is missing: another program has cut"));
}

TEST_F(SafetensorsDamageTest, WhatIsNoFileIsRefused) {
  EXPECT_THAT(message_of<InputError>([&] { Safetensors::open(folder_ / "absent"); }), HasSubstr("No such file"));
  EXPECT_THAT(message_of<InputError>([&] { Safetensors::open(folder_); }), HasSubstr("it is a folder"));
  EXPECT_THAT(message_of<InputError>([&] { Safetensors::open("/dev/null"); }), HasSubstr("not a regular file"));
}

} // namespace
} // namespace trireme::checkpoint
