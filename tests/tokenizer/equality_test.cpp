// Trireme's ids and texts are those of PyPI tokenizers, for the configurations that published models have.
#include <tests/support/folders.h>
#include <trireme/tokenizer/tokenizer.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/data/fetch_command.h>
#include <trireme/tokenizer/unicode.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::tokenizer {
namespace {

namespace fs = std::filesystem;

// Texts, each behind its length.
std::vector<std::string> read_texts(const fs::path& file) {
  const std::string content = read_file(file);
  std::vector<std::string> texts;
  for (size_t at = 0; at < content.size();) {
    uint32_t bytes = 0;
    std::memcpy(&bytes, content.data() + at, sizeof bytes);
    at += sizeof bytes;
    texts.push_back(content.substr(at, bytes));
    at += bytes;
  }
  return texts;
}

// What train_tokenizers.py has written.
class TokenizerEqualityTest : public testing::Test {
 protected:
  TokenizerEqualityTest() : folder_(make_scratch_folder("trireme_tokenizers")) {}

  void train(int lines) {
    // Texts of your own: TRIREME_TOKENIZER_TEXT=novels.txt
    std::vector<std::string> command = {test::python(), test::source_dir() + "/tests/tokenizer/train_tokenizers.py",
                                        folder_.path.string(), std::to_string(lines)};
    if (const auto text = env::text("TRIREME_TOKENIZER_TEXT")) {
      command.push_back(*text);
    }
    const data::CommandResult result = data::run_command(command, folder_.path);
    ASSERT_EQ(result.exit_code, 0) << "PyPI tokenizers is needed (requirements-test.txt):\n"
                                   << result.err.substr(result.err.size() - std::min<size_t>(result.err.size(), 3000));
  }

  void expect_equal(const std::string& name, const std::vector<std::string>& texts) {
    const auto tokenizer = make_tokenizer((folder_.path / name).string());
    const std::string all = read_file(folder_.path / name / "ids.bin");
    std::vector<int32_t> numbers(all.size() / sizeof(int32_t));
    std::memcpy(numbers.data(), all.data(), all.size());
    const std::vector<std::string> decoded = read_texts(folder_.path / name / "texts.bin");
    ASSERT_GE(decoded.size(), 2 * std::min<size_t>(texts.size(), 1000)) << "some are compared on the first ones alone";
    size_t at = 0;
    for (size_t i = 0; i < decoded.size() / 2; ++i) {
      for (const bool special : {false, true}) {
        const auto begin = numbers.begin() + static_cast<std::ptrdiff_t>(at) + 1;
        const std::vector<int32_t> ids(begin, begin + numbers.at(at));
        at += 1 + ids.size();
        ASSERT_EQ(tokenizer->encode(texts[i], special), ids)
            << name << ", special " << special << ": " << nlohmann::json(replace_invalid_utf8(texts[i])).dump();
        if (special) {
          for (const bool skip : {false, true}) {
            ASSERT_EQ(replace_invalid_utf8(tokenizer->decode(ids, skip)), decoded[2 * i + (skip ? 1 : 0)])
                << name << ", skip " << skip << ": " << nlohmann::json(replace_invalid_utf8(texts[i])).dump();
          }
        }
      }
    }
    EXPECT_EQ(at, numbers.size());
  }

  ScratchFolder folder_;
};

TEST_F(TokenizerEqualityTest, IdsAndTextsAreThoseOfHuggingFace) {
  train(env::text("TRIREME_LONG_TESTS") ? 100'000 : 1'000);
  const std::vector<std::string> lines = read_texts(folder_.path / "lines.bin");
  for (const auto& name : nlohmann::json::parse(read_file(folder_.path / "names.json"))) {
    expect_equal(name, lines);
  }
  expect_equal("pair", lines); // vocab.json and merges.txt
  // Every character of Unicode 14, the version of Debian 12's PCRE2.
  const std::vector<std::string> code_points = read_texts(folder_.path / "code_points.bin");
  expect_equal("code_points_gpt2", code_points);
  expect_equal("code_points_llama3", code_points);
  // The lines as one text, by one thread and by several.
  std::string text;
  for (const std::string& line : lines) {
    text += line;
    text += '\n';
  }
  while (text.size() < 1'000'000) {
    text += text;
  }
  for (const char* name : {"gpt2", "llama2", "llama3", "qwen2", "smollm2", "bert", "t5", "xlm_roberta", "gpt2_prefix",
                           "whitespace", "split_empty"}) {
    const auto tokenizer = make_tokenizer((folder_.path / name).string());
    const auto ids = tokenizer->encode(text);
    for (const int threads : {1, 2, 5}) {
      EXPECT_EQ(tokenizer->encode_with_threads(text, threads), ids) << name << ' ' << threads;
    }
  }
}

} // namespace
} // namespace trireme::tokenizer
