#include <trireme/tokenizer/tokenizer.h>

#include <trireme/base/error.h>

#include "../data/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <random>

namespace trireme::tokenizer {
namespace {

using data::input_error;
using data::TemporaryFolderTest;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kTiny = R"({
  "version": "1.0",
  "truncation": null,
  "added_tokens": [
    {"id": 6, "content": "<e>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
  ],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": {"type": "ByteLevel"},
  "decoder": {"type": "ByteLevel"},
  "model": {
    "type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "byte_fallback": false,
    "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "abab": 5},
    "merges": [
      "a b",
      ["Ġ", "ab"],
      "ab ab"
    ]
  }
})";

class TokenizerFileTest : public TemporaryFolderTest {
 protected:
  // Reads kTiny with `from` replaced by `to` and returns the complaint, "" when there is none.
  std::string complaint(const std::string& from, const std::string& to) {
    std::string content = kTiny;
    const size_t at = content.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    content.replace(at, from.size(), to);
    return complaint_of(write("tokenizer.json", content));
  }

  static std::string complaint_of(const std::string& spec) {
    return input_error([&] { make_tokenizer(spec); });
  }
};

TEST_F(TokenizerFileTest, ReadsAFileByHand) {
  const auto tokenizer = make_tokenizer(write("tokenizer.json", kTiny));
  EXPECT_THAT(tokenizer->encode("abab ab<e>ba"), ElementsAre(5, 4, 6, 1, 0));
  EXPECT_THAT(tokenizer->encode("ababab"), ElementsAre(5, 3));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{5, 4, 6, 1, 0}), "abab ab<e>ba");
  EXPECT_EQ(tokenizer->vocab_size(), 7);
  EXPECT_THAT(tokenizer->describe(), AllOf(HasSubstr("7 tokens"), HasSubstr("tokenizer.json")));
}

TEST_F(TokenizerFileTest, OutOfTwoFilesWithTheSameNamesAsGpt2) {
  const std::string vocab = R"({"a": 0, "b": 1, "ab": 3, "<|endoftext|>": 7})";
  for (const auto& [vocab_name, merges_name] :
       {std::pair("vocab.json", "merges.txt"), std::pair("encoder.json", "vocab.bpe")}) {
    write(vocab_name, vocab);
    write(merges_name, "#version: 0.2\r\na b\r\n\n");
    const auto tokenizer = make_tokenizer(folder_);
    EXPECT_THAT(tokenizer->encode("aba<|endoftext|>"), ElementsAre(3, 0, 7));
    EXPECT_EQ(tokenizer->vocab_size(), 8);
    EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{2}), InputError); // a hole in the ids
    EXPECT_EQ(complaint_of((folder_ / vocab_name).string()), "");
    std::filesystem::remove(folder_ / merges_name);
    EXPECT_THAT(complaint_of(folder_.string()), AllOf(HasSubstr(vocab_name), HasSubstr(merges_name)));
    EXPECT_THAT(complaint_of((folder_ / vocab_name).string()), HasSubstr("merges"));
    std::filesystem::remove(folder_ / vocab_name);
  }
}

TEST_F(TokenizerFileTest, AByteWithoutTokenIsAnError) {
  const auto tokenizer = make_tokenizer(write("tokenizer.json", kTiny));
  try {
    tokenizer->encode("ab abc");
    FAIL() << "c has no token";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("no token for \"c\" in \"Ġabc\""), HasSubstr("tokenizer.json")));
  }
}

// Pages of zeros that nobody touches: the word is refused before it is looked at.
TEST_F(TokenizerFileTest, AWordThatIsTooLongIsRefused) {
  std::string content = kTiny;
  const std::string regex = R"("use_regex": true)";
  content.replace(content.find(regex), regex.size(), R"("use_regex": false)");
  const size_t begin = content.find('{', content.find("added_tokens"));
  content.erase(begin, content.find('}', begin) + 1 - begin);
  const auto tokenizer = make_tokenizer(write("tokenizer.json", content));
  EXPECT_THAT(tokenizer->encode("abab ab"), ElementsAre(5, 4));
  constexpr size_t kBytes = size_t{1} << 31;
  void* const zeros = ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(zeros, MAP_FAILED);
  EXPECT_THAT(input_error([&] { tokenizer->encode({static_cast<const char*>(zeros), kBytes}); }),
              AllOf(HasSubstr("a word of 2147483648 bytes"), HasSubstr("tokenizer.json"), HasSubstr("up to 2147483647"),
                    HasSubstr("encode it in parts")));
  ::munmap(zeros, kBytes);
}

TEST_F(TokenizerFileTest, RefusesByNameWhatIsNotSupported) {
  EXPECT_THAT(
      complaint(R"("type": "BPE")", R"("type": "WordLevel")"),
      AllOf(HasSubstr("the model \"WordLevel\""), HasSubstr("json:11:12"), HasSubstr("Supported: BPE, Unigram")));
  EXPECT_THAT(complaint(R"("normalizer": null)", R"("normalizer": {"type": "NFX"})"),
              AllOf(HasSubstr("the normalizer \"NFX\""), HasSubstr("json:7:"), HasSubstr("NFKD")));
  EXPECT_THAT(complaint(R"("normalizer": null)",
                        R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFX"}]})"),
              HasSubstr("the normalizer \"NFX\""));
  EXPECT_THAT(complaint(R"("normalizer": null)", R"("normalizer": {"type": "NFC", "form": 2})"),
              HasSubstr("normalizer.form: unknown key"));
  EXPECT_THAT(complaint(R"({"type": "ByteLevel", "add)", R"({"type": "UnicodeScripts", "add)"),
              AllOf(HasSubstr("the pre-tokenizer \"UnicodeScripts\""), HasSubstr("json:8:"), HasSubstr("\\p{Han}")));
  EXPECT_THAT(complaint(R"({"type": "ByteLevel", "add)", R"({"type": "Sequence", "add)"), HasSubstr("pretokenizers"));
  EXPECT_THAT(complaint(R"("decoder": {"type": "ByteLevel"})", R"("decoder": {"type": "CTC"})"),
              HasSubstr("the decoder \"CTC\""));
  EXPECT_THAT(complaint(R"("post_processor": {"type": "ByteLevel"})", R"("post_processor": {"type": "Other"})"),
              HasSubstr("the post-processor \"Other\""));
  EXPECT_THAT(
      complaint(R"("post_processor": {"type": "ByteLevel"})",
                R"("post_processor": {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}})"),
      HasSubstr("the text 0 times"));
  EXPECT_THAT(complaint(R"("dropout": null)", R"("dropout": 0.1)"), AllOf(HasSubstr("dropout 0.1"), HasSubstr("null")));
  const std::string split =
      R"({"type": "Split", "pattern": {"Regex": "[a&&b]"}, "behavior": "Isolated", "invert": false})";
  EXPECT_THAT(
      complaint(R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})", split),
      AllOf(HasSubstr("json:8:59"), HasSubstr("(&&)")));
  EXPECT_THAT(complaint(R"("use_regex": true})", R"("use_regex": true, "more": 1})"),
              HasSubstr("pre_tokenizer.more: unknown key"));
  EXPECT_EQ(
      complaint(R"("dropout": null)", R"("dropout": 0.0, "continuing_subword_prefix": "", "end_of_word_suffix": null)"),
      "");
  EXPECT_EQ(complaint(R"("type": "BPE", )", ""), ""); // old files do not say it
}

TEST_F(TokenizerFileTest, NamesFileLineAndTokenOfWhatIsWrong) {
  EXPECT_THAT(complaint("\"a b\"", "\"a c\""), AllOf(HasSubstr("tokenizer.json:15:7"), HasSubstr("\"c\"")));
  EXPECT_THAT(complaint("\"a b\"", "\"b a\""), AllOf(HasSubstr("json:15:"), HasSubstr("\"ba\"")));
  EXPECT_THAT(complaint("\"a b\"", "\"ab\""), AllOf(HasSubstr("json:15:"), HasSubstr("two tokens")));
  EXPECT_THAT(complaint("\"a b\"", "\"a  b\""), HasSubstr("two tokens"));
  EXPECT_THAT(complaint("\"a b\"", "[\"a\"]"), AllOf(HasSubstr("json:15:"), HasSubstr("found 1")));
  EXPECT_THAT(complaint("\"a b\"", "7"), HasSubstr("json:15:"));
  EXPECT_THAT(complaint("\"a b\"", "[1, 2]"), HasSubstr("json:15:"));
  EXPECT_THAT(complaint("\"merges\"", "\"mergers\""), HasSubstr("merges"));
  EXPECT_THAT(complaint("\"vocab\"", "\"vocabulary\""), HasSubstr("vocab"));
  EXPECT_THAT(complaint("\"b\": 1", "\"b\": 0"), HasSubstr("two tokens have the id 0"));
  EXPECT_THAT(complaint("\"b\": 1", "\"b\": -1"), HasSubstr("-1"));
  EXPECT_THAT(complaint("\"b\": 1", "\"b\": 4294967296"), HasSubstr("4294967296"));
  EXPECT_THAT(complaint("\"b\": 1", "\"b\": 2147483647"), HasSubstr("2147483647"));
  EXPECT_THAT(complaint("\"b\": 1", "\"b\": 1.5"), HasSubstr("json:13:"));
  EXPECT_THAT(complaint("\"b\": 1", "\"a\": 1"), HasSubstr("twice"));
  EXPECT_THAT(complaint("\"id\": 6", "\"id\": 8"), AllOf(HasSubstr("json:5:"), HasSubstr("the id 8"), HasSubstr("6")));
  EXPECT_THAT(complaint("\"content\": \"<e>\"", "\"content\": \"ab\""), AllOf(HasSubstr("the id 6"), HasSubstr("3")));
  EXPECT_THAT(complaint("\"add_prefix_space\": false, ", ""), HasSubstr("add_prefix_space"));

  const std::string vocab = write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  write("merges.txt", "#version: 0.2\na b\nab c\n");
  EXPECT_THAT(complaint_of(vocab), AllOf(HasSubstr("merges.txt:3"), HasSubstr("\"c\"")));
  write("merges.txt", "\xEF\xBB\xBF#version: 0.2\na b\nab c\n");
  EXPECT_THAT(complaint_of(vocab), HasSubstr("merges.txt:3")) << "an editor's mark before the first line is no merge";
  write("merges.txt", std::string("a\0 \0b\0\n\0", 8));
  EXPECT_THAT(complaint_of(vocab), AllOf(HasSubstr("merges.txt is probably UTF-16LE"), HasSubstr("iconv")));
  write("merges.txt", "a b\n\nab a\n");
  EXPECT_THAT(complaint_of(vocab), HasSubstr("merges.txt:2"));
  write("vocab.json", "{}");
  EXPECT_THAT(complaint_of(vocab), HasSubstr("empty"));
  write("vocab.json", "[\"a\"]");
  EXPECT_THAT(complaint_of(vocab), HasSubstr("vocab.json:1:1"));
}

TEST_F(TokenizerFileTest, NamesWhatASpecMayBe) {
  EXPECT_THAT(complaint_of("byte"), AllOf(HasSubstr("Did you mean \"bytes\""), HasSubstr("tokenizer.json")));
  EXPECT_THAT(complaint_of(""), HasSubstr("neither"));
  EXPECT_THAT(complaint_of((folder_ / "missing.json").string()), HasSubstr("missing.json"));
  EXPECT_THAT(complaint_of(folder_.string()), HasSubstr("has no tokenizer"));
}

TEST_F(TokenizerFileTest, DamagedFilesAreInputErrorsAndNothingElse) {
  const std::string whole = kTiny;
  const auto complaint_about = [&](const std::string& content) {
    // Some file systems write a file that is shortened to nothing to the disk at once; a new one is quick.
    std::filesystem::remove(folder_ / "tokenizer.json");
    return complaint_of(write("tokenizer.json", content));
  };
  for (size_t size = 0; size + 1 < whole.size(); ++size) {
    EXPECT_NE(complaint_about(whole.substr(0, size)), "") << size;
  }
  std::mt19937 random(99);
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string content = whole;
    for (uint32_t left = 1 + random() % 3; left > 0; --left) {
      const size_t at = random() % content.size();
      switch (random() % 3) {
        case 0:
          content[at] = static_cast<char>(random());
          break;
        case 1:
          content.erase(at, 1 + random() % 8);
          break;
        default:
          content.insert(at, content.substr(random() % content.size(), 1 + random() % 12));
      }
    }
    // Anything but InputError leaves the test as a failure.
    accepted += complaint_about(content).empty();
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 2000);
}

} // namespace
} // namespace trireme::tokenizer
