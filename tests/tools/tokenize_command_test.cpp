#include "shell.h"

#include <tests/support/page_blocks.h>

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TokenizeCommandTest : public testing::Test {
 protected:
  TokenizeCommandTest() : folder_(make_scratch_folder("trireme_tokenize")) {
    write_file_atomically(folder_.path / "tokenizer.json", R"({
      "added_tokens": [{"id": 6, "content": "<s>", "special": true, "normalized": false}],
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
      "post_processor": {"type": "BertProcessing", "cls": ["<s>", 6], "sep": ["<s>", 6]},
      "decoder": {"type": "ByteLevel"},
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ã": 4, "©": 5}, "merges": ["a b"]}})");
  }
  Finished run(const std::string& input, const std::string& options) const {
    write_file_atomically(folder_.path / "input", input);
    return sh(concat(kTrireme, " tokenize --tokenizer \"", folder_.path.string(), "\" ", options, " < \"",
                     (folder_.path / "input").string(), '"'),
              60);
  }
  ScratchFolder folder_;
};

TEST_F(TokenizeCommandTest, OneObjectALine) {
  const Finished ids = run("ab a\n\nb<s>\xc3\xa9", "--json");
  EXPECT_EQ(ids.status, 0);
  EXPECT_EQ(ids.output, "{\"ids\": [3, 2, 0]}\n{\"ids\": []}\n{\"ids\": [1, 6, 4, 5]}\n");
  EXPECT_EQ(run("ab a\n", "--special --json").output, "{\"ids\": [6, 3, 2, 0, 6]}\n");
  EXPECT_EQ(run("ab a\n", "").output, "3 2 0\n");
}

TEST_F(TokenizeCommandTest, AndBack) {
  const Finished text = run("{\"ids\": [6, 3, 2, 0]}\n[4, 5]\n4\n\n 1 \t1\n", "--decode --json");
  EXPECT_EQ(text.status, 0);
  EXPECT_EQ(text.output,
            "{\"text\":\"ab "
            "a\"}\n{\"text\":\"\xc3\xa9\"}\n{\"text\":\"\xef\xbf\xbd\"}\n{\"text\":\"\"}\n{\"text\":\"bb\"}\n");
  EXPECT_EQ(run("6 3\n", "--decode --special").output, "<s>ab\n");
}

TEST_F(TokenizeCommandTest, PrintsWhatThePageShows) {
  int commands = 0;
  for (const test::PageBlock& block : test::blocks_of("docs/tokenizers.md")) {
    std::string command, output;
    const auto compare = [&] {
      if (!command.empty()) {
        write_file_atomically(folder_.path / "command", command); // sh() would have to quote it
        const Finished run =
            sh(concat("PATH=", test::binary_dir(), "/bin:$PATH sh ", folder_.path.string(), "/command"));
        EXPECT_EQ(run.output, output) << block.where;
        ++commands;
      }
      output.clear();
    };
    for (const std::string& line : split(block.text, '\n')) {
      if (line.starts_with("$ ")) {
        compare();
        command = line.substr(2);
      } else if (!line.empty()) {
        output += line + '\n';
      }
    }
    compare();
  }
  EXPECT_EQ(commands, 2);
}

TEST_F(TokenizeCommandTest, BenchTokenizerPrintsRows) {
  write_file_atomically(folder_.path / "text", "ab ab a b");
  const Finished rows = sh(concat(kTrireme, " bench tokenizer --tokenizer ", folder_.path.string(), " --text ",
                                  (folder_.path / "text").string(), " --threads 1,2 --repeats 2 --json"),
                           60);
  EXPECT_EQ(rows.status, 0) << rows.output;
  EXPECT_THAT(rows.output, AllOf(HasSubstr("\"threads\":1"), HasSubstr("\"threads\":2"), HasSubstr("\"bytes\":9"),
                                 HasSubstr("\"ids\":7"), HasSubstr("\"mb_per_s\":")));
}

TEST_F(TokenizeCommandTest, BadInputIsOneSentence) {
  const auto refused = [&](const std::string& input, const std::string& options) {
    const Finished finished = run(input, options);
    EXPECT_EQ(finished.status, 2) << finished.output;
    return finished.output;
  };
  EXPECT_THAT(refused("1\n9\n", "--decode"), AllOf(HasSubstr("stdin:2: "), HasSubstr("no such id (ids are 0 to 6)")));
  EXPECT_THAT(refused("1\n1 x\n", "--decode"), AllOf(HasSubstr("stdin:2"), HasSubstr("got \"x\"")));
  EXPECT_THAT(refused("[1,\n", "--decode"), HasSubstr("stdin:1"));
  EXPECT_THAT(refused("{\"id\": 1}\n", "--decode"), HasSubstr("has no \"ids\""));
  EXPECT_THAT(refused("-1\n", "--decode"), HasSubstr("-1 is not a token id"));
  EXPECT_THAT(refused("q\n", ""), HasSubstr("no token for \"q\""));
  const Finished missing = sh(kTrireme + " tokenize --tokenizer nothing.json < /dev/null", 60);
  EXPECT_EQ(missing.status, 2);
  EXPECT_THAT(missing.output, HasSubstr("nothing.json"));
  EXPECT_EQ(sh(kTrireme + " tokenize < /dev/null", 60).status, 2);
}

} // namespace
} // namespace trireme::tools
