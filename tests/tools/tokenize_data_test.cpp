// `trireme data tokenize`, `trireme inspect` of what it wrote, and runs on it.
#include "shell.h"

#include <tests/support/sanitized.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace trireme::tools {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class TokenizeDataTest : public RunFolder {
 protected:
  TokenizeDataTest() {
    for (int i = 0; i < 6000; ++i) {
      text_ += static_cast<char>(' ' + (i * (1 + i / 600)) % 50);
    }
    write_file_atomically(folder / "text.txt", text_);
  }
  Finished tokenize(const std::string& rest) const {
    return sh(concat(kTrireme, " data tokenize ", rest, " --out ", path("tokens")), 60);
  }
  Finished inspect(const std::string& what, const std::string& rest = "") const {
    return sh(concat(kTrireme, " inspect ", path(what), ' ', rest), 60);
  }
  std::string text_;
};

TEST_F(TokenizeDataTest, ARunOnShardsIsTheRunOnARawFile) {
  const Finished made = tokenize(path("text.txt") + " --tokenizer bytes --shard-tokens 1000 --threads 2");
  ASSERT_EQ(made.status, 0) << made.output;
  EXPECT_THAT(made.output, AllOf(HasSubstr("1 document, 6.00k tokens of 16 bits, 6.00 kB of text"),
                                 HasSubstr("nothing between documents: "), HasSubstr("6 shards in "),
                                 HasSubstr("\"type\": \"tokens\", \"train\": ")));
  write_tokens("tokens.bin", {text_.begin(), text_.end()});
  // The vocabulary is that of the folder's tokenizer.
  const std::string model = R"({"type": "gpt", "layers": 1, "hidden": 16, "heads": 2, "sequence_length": 16})";
  const auto train_on = [&](const std::string& data, const std::string& more) {
    write_run("run.json", model, data);
    const Finished run = train(concat("--set training.steps=4 --set training.checkpoint_every=4 ", more));
    EXPECT_EQ(run.status, 0) << run.output;
    return tensor_bytes_of_one(folder / "out/checkpoints/global_step4");
  };
  const std::string raw = train_on("tokens.bin", "--set data.tokenizer=bytes");
  std::filesystem::remove_all(folder / "out");
  EXPECT_EQ(train_on("tokens", "") == raw, true);
}

// Conversations by a template that takes a while for each: some ten seconds together. Tokenizing ends soon after a
// signal and leaves nothing.
class EndedTokenizingTest : public TokenizeDataTest {
 protected:
  EndedTokenizingTest() {
    const std::string content(260'000, 'a'); // a block of its own
    std::string lines;
    for (int i = 0; i < 80; ++i) {
      lines += concat(R"({"messages": [{"role": "user", "content": ")", content, "\"}]}\n");
    }
    write_file_atomically(folder / "lines.jsonl", lines);
    write_file_atomically(folder / "slow.jinja",
                          "{% for i in range(1000) %}{% for j in range(700) %}{% endfor %}{% endfor %}"
                          "{{ messages[0].content }}");
  }
  // Starts the command, sends the signal once the folder has files that match, and waits for the end: its status, and
  // the seconds that took.
  std::pair<int, double> end(const std::string& command, const std::string& files, const std::string& signal) const {
    const Finished finished = sh(concat("cd ", folder.string(), "; ", command, " > log 2>&1 & p=$!; while ! ls ", files,
                                        " > begun 2>&1; do sleep 0.05; done; sleep 0.3; a=$(date +%s.%N); kill -",
                                        signal, " $p; wait $p; s=$?; echo = $a $(date +%s.%N) $s"),
                                 60);
    double begin = 0, end = 0;
    int status = -1;
    const size_t at = std::min(finished.output.rfind("= "), finished.output.size()); // the shell reports too
    EXPECT_EQ(std::sscanf(finished.output.c_str() + at, "= %lf %lf %d", &begin, &end, &status), 3) << finished.output;
    return {status, end - begin};
  }
  bool is_something_left() const {
    return !sh(concat("cd ", folder.string(), "; find . -name \"tokens*\" -type d")).output.empty();
  }
  static constexpr double kSoon = test::kSanitized ? 20 : 8; // seconds; about 0.5 on a machine that is not busy
};

TEST_F(EndedTokenizingTest, TheCommandEndsByTheSignal) {
  const std::string command = concat("exec ", kTrireme,
                                     " data tokenize lines.jsonl --tokenizer bytes --chat-template slow.jinja "
                                     "--loss-on all --threads 1 --out tokens");
  for (const auto& [signal, expected] : {std::pair("TERM", 143), {"HUP", 129}}) {
    const auto [status, seconds] = end(concat("(", command, ")"), "-d tokens.unfinished.*", signal);
    EXPECT_EQ(status, expected) << read_file(folder / "log");
    EXPECT_LT(seconds, kSoon);
    EXPECT_FALSE(is_something_left());
  }
}

TEST_F(TokenizeDataTest, JsonAndInspect) {
  write_file_atomically(folder / "lines.jsonl", "{\"body\": \"ab\"}\n{\"body\": \"\"}\n{\"body\": \"cde\"}\n");
  const Finished made = tokenize(path("lines.jsonl") + " --tokenizer bytes --text-key body --json");
  ASSERT_EQ(made.status, 0) << made.output;
  const json result = json::parse(made.output);
  EXPECT_EQ(result["documents"], 2);
  EXPECT_EQ(result["empty_documents"], 1);
  EXPECT_EQ(result["tokens"], 5);
  EXPECT_EQ(result["end_token"], nullptr);
  EXPECT_EQ(result["folder"], path("tokens"));

  const Finished shown = inspect("tokens");
  EXPECT_EQ(shown.status, 0);
  EXPECT_THAT(shown.output, AllOf(HasSubstr("made with bytes (256 tokens), nothing between documents"),
                                  HasSubstr("tokens-00000.bin  5 tokens of 16 bits, 2 documents")));
  const json found = json::parse(inspect("tokens/tokens-00000.bin", "--json").output);
  EXPECT_EQ(found["files"][0]["vocab_size"], 256);
  EXPECT_EQ(found["files"][0]["damaged"], false);
  EXPECT_EQ(json::parse(inspect("tokens", "--json").output)["inputs"][0]["documents"], 2);

  std::string shard = read_file(folder / "tokens/tokens-00000.bin");
  shard[128] ^= 1;
  write_file_atomically(folder / "tokens/tokens-00000.bin", shard);
  const Finished damaged = inspect("tokens");
  EXPECT_EQ(damaged.status, 1);
  EXPECT_THAT(damaged.output, HasSubstr("DAMAGED: wrong checksum"));
  write_file_atomically(folder / "tokens/index.json", "{");
  EXPECT_THAT(inspect("tokens").output, HasSubstr("tokens/index.json:1:"));
  std::filesystem::remove(folder / "tokens/index.json");
  const Finished without = inspect("tokens");
  EXPECT_EQ(without.status, 2);
  EXPECT_THAT(without.output, HasSubstr("as a folder it has no index.json. Name files, or a folder that"));
}

// Two thirds of the tokens count. Ranks and micro-batches have unequal numbers of them.
TEST_F(TokenizeDataTest, ARunCountsTheResponsesInAnyLayout) {
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    lines += concat(R"({"prompt": ")", std::string(1 + i % 29, 'a'), R"(", "response": ")",
                    std::string(2 * (1 + i % 29), static_cast<char>('b' + i % 5)), "\"}\n");
  }
  write_file_atomically(folder / "prompts.jsonl", lines);
  const Finished made = tokenize(path("prompts.jsonl") + " --tokenizer bytes --fields prompt");
  ASSERT_EQ(made.status, 0) << made.output;
  EXPECT_THAT(made.output, HasSubstr(" of the tokens count in the loss, 67 %"));
  EXPECT_THAT(inspect("tokens").output,
              AllOf(HasSubstr("(67 % count in the loss)"), HasSubstr("60 documents, 67 % count in the loss")));
  write_run("run.json", R"({"type": "gpt", "layers": 1, "hidden": 16, "heads": 2, "sequence_length": 16})", "tokens");
  const auto metrics = [&](const std::string& layout) {
    std::filesystem::remove_all(folder / "out");
    const Finished run =
        train(concat("--set training.steps=3 --set training.eval_every=3 --set data.validation=", path("tokens"),
                     " --set engine.train_batch_size=8 ", layout));
    EXPECT_EQ(run.status, 0) << run.output;
    std::vector<json> found;
    std::istringstream rows(read_file(folder / "out/metrics.jsonl"));
    for (std::string row; std::getline(rows, row);) {
      found.push_back(json::parse(row));
    }
    return found;
  };
  const auto one = metrics("-n 1");
  const auto two = metrics("-n 2 --set engine.gradient_accumulation_steps=2");
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) {
    for (const char* key : {"loss", "val_loss"}) {
      if (one[i].contains(key) && one[i][key].is_number()) {
        EXPECT_NEAR(two[i][key].get<double>(), one[i][key].get<double>(), 1e-5) << key << ' ' << i;
      }
    }
  }
  EXPECT_TRUE(one.back().contains("val_loss"));
}

TEST_F(TokenizeDataTest, TokensOfWhichNoneCountsAreNamedAndRefused) {
  const std::string line = R"({"messages": [{"role": "bot", "content": "a row"}]})"
                           "\n";
  std::string lines;
  for (int i = 0; i < 30; ++i) {
    lines += line;
  }
  write_file_atomically(folder / "bots.jsonl", lines);
  write_file_atomically(folder / "rows.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
  const std::string rest = path("bots.jsonl") + " --tokenizer bytes --chat-template " + path("rows.jinja");
  const Finished made = tokenize(rest);
  EXPECT_EQ(made.status, 0) << made.output;
  EXPECT_THAT(made.output, AllOf(HasSubstr("none of the tokens counts in the loss"), HasSubstr("--loss-on all")));
  write_run("run.json", R"({"type": "gpt", "layers": 1, "hidden": 16, "heads": 2, "sequence_length": 16})", "tokens");
  const Finished run = train("--set training.steps=3 -n 1");
  EXPECT_EQ(run.status, 2) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("no token of "), HasSubstr("tokens counts in the loss")));
}

TEST_F(TokenizeDataTest, BadInputIsOneSentence) {
  const auto refused = [&](const std::string& rest) {
    const Finished finished = tokenize(rest);
    EXPECT_EQ(finished.status, 2) << finished.output;
    EXPECT_EQ(std::count(finished.output.begin(), finished.output.end(), '\n'), 1) << finished.output;
    EXPECT_FALSE(std::filesystem::exists(folder / "tokens"));
    return finished.output;
  };
  write_file_atomically(folder / "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": 5}\n");
  EXPECT_THAT(refused(path("bad.jsonl") + " --tokenizer bytes"), HasSubstr("bad.jsonl:2: \"text\" is a number"));
  write_file_atomically(folder / "half.jsonl", "{\"prompt\": \"a\"}\n");
  EXPECT_THAT(refused(path("half.jsonl") + " --tokenizer bytes"),
              HasSubstr("half.jsonl:1: the key \"response\" is missing"));
  EXPECT_THAT(refused(path("half.jsonl") + " --tokenizer bytes --fields messages"),
              HasSubstr("half.jsonl:1: the key \"messages\" is missing"));
  write_file_atomically(folder / "chat.jsonl", R"({"messages": [{"role": "user", "content": "a"}]})");
  EXPECT_THAT(refused(path("chat.jsonl") + " --tokenizer bytes"),
              HasSubstr("has no chat template, which \"messages\" needs"));
  EXPECT_THAT(refused(path("chat.jsonl") + " --tokenizer bytes"),
              HasSubstr("--chat-template of trireme data tokenize"));
  EXPECT_THAT(refused(path("half.jsonl") + " --tokenizer bytes --fields words"), HasSubstr("--fields"));
  EXPECT_THAT(refused(path("absent.txt") + " --tokenizer bytes"), HasSubstr("absent.txt"));
  EXPECT_THAT(refused(path("text.txt") + " --tokenizer nothing"), HasSubstr("\"nothing\" is neither"));
  EXPECT_THAT(refused(path("text.txt")), HasSubstr("--tokenizer is required"));
  EXPECT_THAT(refused(path("text.txt") + " --tokenizer bytes --shard-tokens 0"), HasSubstr("--shard-tokens"));
  EXPECT_THAT(
      sh(concat(kTrireme, " data tokenize ", path("text.txt"), " --tokenizer bytes --out ", path("text.txt"), "/x"))
          .output,
      HasSubstr("text.txt"));
}

// A limit on the size of any file stands for a full disk.
TEST_F(TokenizeDataTest, AFullDiskLeavesNothing) {
  write_file_atomically(folder / "large.txt", std::string(3'000'000, 'a'));
  const std::string_view without_shadow =
      test::kThreadSanitizer ? "TMPDIR=/nonexistent " : ""; // where ThreadSanitizer keeps a file
  const Finished full = sh(concat("trap \"\" XFSZ; ulimit -f 1000; ", without_shadow, kTrireme, " data tokenize ",
                                  path("large.txt"), " --tokenizer bytes --out ", path("tokens")));
  EXPECT_EQ(full.status, 1) << full.output;
  EXPECT_THAT(full.output,
              AllOf(HasSubstr("cannot write"), HasSubstr("tokens-00000.bin"), HasSubstr("Nothing was made")));
  for (const auto& item : std::filesystem::directory_iterator(folder)) {
    EXPECT_THAT(item.path().filename().string(), Not(testing::StartsWith("tokens.un")));
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "tokens"));
}

TEST_F(TokenizeDataTest, AKilledCommandLeavesNoFolder) {
  std::string lines;
  for (int i = 0; i < 400'000; ++i) {
    lines += "{\"text\": \"some words in a line that is read\"}\n";
  }
  write_file_atomically(folder / "lines.jsonl", lines);
  const Finished killed =
      sh(concat("timeout -s KILL 0.1 ", kTrireme, " data tokenize ", path("lines.jsonl"), " ", path("lines.jsonl"), " ",
                path("lines.jsonl"), " --tokenizer bytes --out ", path("tokens")));
  EXPECT_NE(killed.status, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "tokens"));
  const Finished again = tokenize(path("text.txt") + " --tokenizer bytes");
  EXPECT_EQ(again.status, 0) << again.output;
  for (const auto& item : std::filesystem::directory_iterator(folder)) {
    EXPECT_THAT(item.path().filename().string(), Not(HasSubstr("unfinished")));
  }
}

} // namespace
} // namespace trireme::tools
