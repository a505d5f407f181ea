// Runs on texts and JSON lines, whose tokens are made once, and on mixtures.
#include "shell.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kMixture = R"({"type": "mixture", "sets": [
    {"data": {"type": "text", "train": "text.txt", "validation_fraction": 0.1}, "weight": 3},
    {"data": {"type": "tokens", "train": "tokens.bin"}, "weight": 1}], "tokenizer": "bytes"})";

class TextDataTest : public RunFolder {
 protected:
  TextDataTest() {
    std::string text;
    for (int i = 0; i < 9000; ++i) {
      text += static_cast<char>(' ' + (i * (1 + i / 600)) % 50);
    }
    write_file_atomically(folder / "text.txt", text);
    write_data(R"({"type": "text", "train": "text.txt", "validation_fraction": 0.1})");
  }
  void write_data(const std::string& data) const {
    write_file_atomically(folder / "run.json", concat(R"({
  "model": {"type": "gpt", "layers": 1, "hidden": 32, "heads": 2, "sequence_length": 16},
  "data": )",
                                                      data, R"(,
  "training": {"steps": 6, "checkpoint_every": 3},
  "engine": {"train_batch_size": 12, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}})"));
  }
  Finished run(const std::string& out, const std::string& rest, const std::string& before = "") const {
    return sh(concat(before, ' ', kTrireme, " train ", path("run.json"), " --out ", path(out), ' ', rest));
  }
  std::string state(const std::string& out) const {
    const fs::path last = folder / out / "checkpoints/global_step6";
    return tensor_bytes_of_one(last, 0) +
           (fs::exists(last / "rank00001.safetensors") ? tensor_bytes_of_one(last, 1) : "");
  }
  std::vector<double> losses(const std::string& out) const {
    std::vector<double> found;
    std::istringstream lines(read_file(folder / out / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      found.push_back(json::parse(line).at("loss"));
    }
    return found;
  }
  std::vector<fs::path> entries() const {
    std::vector<fs::path> found;
    for (const auto& item : fs::directory_iterator(folder / ".tokens")) {
      if (item.path().extension() == ".json") {
        found.push_back(item.path());
      }
    }
    return found;
  }
};

int64_t times_in(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST_F(TextDataTest, RanksAndRunsTokenizeOnce) {
  constexpr const char* kSays = "TRIREME_LOG=debug TRIREME_LOG_ALL_RANKS=1";
  constexpr const char* kMade = "tokenized into";
  constexpr const char* kInMemory = "tokenizing in memory";
  const Finished first = run("first", "-n 2 --all-output", kSays);
  ASSERT_EQ(first.status, 0) << first.output;
  EXPECT_EQ(times_in(first.output, kMade), 1) << first.output;
  EXPECT_EQ(times_in(first.output, kInMemory), 0);
  ASSERT_EQ(entries().size(), 1u);
  const json made = json::parse(read_file(entries()[0]))["folder"];

  const Finished second = run("second", "-n 2 --all-output", kSays);
  ASSERT_EQ(second.status, 0) << second.output;
  EXPECT_EQ(times_in(second.output, kMade) + times_in(second.output, kInMemory), 0) << second.output;
  EXPECT_EQ(json::parse(read_file(entries()[0]))["folder"], made);
  EXPECT_EQ(state("second") == state("first"), true);

  // A folder that cannot be written: every rank has the same tokens in its memory.
  fs::remove_all(folder / ".tokens");
  write_file_atomically(folder / ".tokens", "a file");
  const Finished without = run("without", "-n 2 --all-output", kSays);
  ASSERT_EQ(without.status, 0) << without.output;
  EXPECT_EQ(times_in(without.output, kInMemory), 2) << without.output;
  EXPECT_EQ(times_in(without.output, "each rank tokenizes"), 1);
  EXPECT_EQ(state("without") == state("first"), true);
  EXPECT_EQ(losses("without"), losses("first"));
}

TEST_F(TextDataTest, AMixtureGoesOnInTheMiddle) {
  write_data(kMixture);
  const Finished whole = run("whole", "-n 2");
  ASSERT_EQ(whole.status, 0) << whole.output;
  EXPECT_THAT(whole.output, AllOf(HasSubstr("mixture: 75.0 % text: "), HasSubstr("; 25.0 % tokens: "),
                                  HasSubstr("samples read: 75.0 % "), HasSubstr("text.txt (0.11 epochs), 25.0 % ")));
  EXPECT_THAT(read_file(folder / "whole/report.html"), HasSubstr("samples read"));
  const Finished half = run("parts", "-n 2 --set training.steps=3");
  ASSERT_EQ(half.status, 0) << half.output;
  const Finished rest = run("parts", "-n 2 --resume");
  ASSERT_EQ(rest.status, 0) << rest.output;
  EXPECT_EQ(state("parts") == state("whole"), true);

  const Finished alone = run("alone", "-n 1 --set engine.gradient_accumulation_steps=2");
  ASSERT_EQ(alone.status, 0) << alone.output;
  const std::vector<double> expected = losses("whole");
  const std::vector<double> of_one = losses("alone");
  ASSERT_EQ(of_one.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(of_one[i], expected[i], 1e-5 * expected[i]) << i;
  }

  const Finished other = run("parts", "-n 2 --resume --set training.steps=9 --set data.shuffle=false");
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.output, HasSubstr("data.shuffle is false, and was true"));
}

// Texts, prompts and conversations, and a template for these.
class LinesDataTest : public TextDataTest {
 protected:
  LinesDataTest() {
    std::string lines;
    for (int i = 0; i < 90; ++i) {
      const std::string words = concat("rows of ", i * i % 97, " and ", i);
      lines += i % 3 == 0 ? json{{"text", words}}.dump()
               : i % 3 == 1
                   ? json{{"prompt", "how many? "}, {"response", words}}.dump()
                   : json{{"messages",
                           {{{"role", "user"}, {"content", "who?"}}, {{"role", "assistant"}, {"content", words}}}}}
                         .dump();
      lines += '\n';
    }
    write_file_atomically(folder / "lines.jsonl", lines);
    write_file_atomically(folder / "rows.jinja",
                          "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                          "{% if add_generation_prompt %}assistant: {% endif %}");
  }
  static std::string lines_data(const std::string& more = "") {
    return concat(R"({"type": "jsonl", "train": "lines.jsonl", "chat_template": "rows.jinja")", more, '}');
  }
};

TEST_F(LinesDataTest, LossesAreThoseOfShards) {
  const auto expect_same = [&](const std::string& loss_on) {
    const Finished made =
        sh(concat(kTrireme, " data tokenize ", path("lines.jsonl"), " --tokenizer bytes --loss-on ", loss_on,
                  " --chat-template ", path("rows.jinja"), " --force --out ", path("shards")));
    ASSERT_EQ(made.status, 0) << made.output;
    write_data(R"({"type": "tokens", "train": "shards"})");
    const Finished shards = run("of_shards", "-n 2");
    ASSERT_EQ(shards.status, 0) << shards.output;
    write_data(lines_data(concat(R"(, "loss_on": ")", loss_on, '"')));
    const Finished lines = run("of_lines", "-n 2", "TRIREME_LOG=debug TRIREME_LOG_ALL_RANKS=1");
    ASSERT_EQ(lines.status, 0) << lines.output;
    EXPECT_EQ(times_in(lines.output, "tokenized into"), 1) << lines.output;
    EXPECT_EQ(losses("of_lines"), losses("of_shards"));
    EXPECT_EQ(state("of_lines") == state("of_shards"), true);
  };
  expect_same("response");
  const std::vector<double> of_responses = losses("of_lines");
  fs::remove_all(folder / "of_lines");
  fs::remove_all(folder / "of_shards");
  expect_same("all");
  EXPECT_NE(losses("of_lines"), of_responses);
  const Finished again = run("again", "-n 2", "TRIREME_LOG=debug TRIREME_LOG_ALL_RANKS=1");
  ASSERT_EQ(again.status, 0) << again.output;
  EXPECT_EQ(times_in(again.output, "tokenized into") + times_in(again.output, "tokenizing"), 0) << again.output;
}

TEST_F(LinesDataTest, AMixtureGoesOnInTheMiddleWithOtherRanks) {
  write_data(concat(R"({"type": "mixture", "tokenizer": "bytes", "sets": [{"weight": 2, "data": )", lines_data(),
                    R"(}, {"weight": 1, "data": {"type": "text", "train": "text.txt"}}]})"));
  const std::string one_rank = "-n 1 --set engine.gradient_accumulation_steps=2";
  const Finished half = run("parts", "-n 2 --set training.steps=3");
  ASSERT_EQ(half.status, 0) << half.output;
  fs::copy(folder / "parts", folder / "other", fs::copy_options::recursive);
  ASSERT_EQ(run("parts", "-n 2 --resume").status, 0);
  const Finished rest = run("other", one_rank + " --resume");
  ASSERT_EQ(rest.status, 0) << rest.output;
  ASSERT_EQ(run("whole", "-n 2").status, 0);
  EXPECT_EQ(state("parts") == state("whole"), true);
  EXPECT_EQ(losses("other"), losses("whole")) << "two halves of a batch have one sum";
}

TEST_F(LinesDataTest, BadKeysAndLinesAreRefusedInOneLine) {
  const auto refused = [&](const std::string& data) {
    write_data(data);
    const Finished finished = run("out", "-n 2");
    EXPECT_EQ(finished.status, 2) << data << '\n' << finished.output;
    EXPECT_EQ(times_in(finished.output, "\n"), 1) << finished.output;
    return finished.output;
  };
  EXPECT_THAT(refused(R"({"type": "text", "train": "text.txt", "loss_on": "all"})"),
              AllOf(HasSubstr("run.json:3:"), HasSubstr("loss_on"), HasSubstr("unknown key")));
  EXPECT_THAT(refused(lines_data(R"(, "loss_on": "answers")")), AllOf(HasSubstr("run.json:3:"), HasSubstr("loss_on")));
  EXPECT_THAT(refused(R"({"type": "jsonl", "train": "lines.jsonl", "chat_template": "absent.jinja"})"),
              AllOf(HasSubstr("run.json:3:"), HasSubstr("absent.jinja")));
  EXPECT_THAT(refused(R"({"type": "jsonl", "train": "lines.jsonl", "chat_template": "absent"})"),
              AllOf(HasSubstr("run.json:3:"), HasSubstr("there is no chat template \"absent\"")));
  write_file_atomically(folder / "rows.jinja", "{{ raise_exception(\"no users\") }}");
  EXPECT_THAT(refused(lines_data()), AllOf(HasSubstr("lines.jsonl:3: "), HasSubstr("no users")));
  write_file_atomically(folder / "lines.jsonl", "{\"text\": \"a\"}\n{\"texts\": \"a\"}\n");
  EXPECT_THAT(refused(lines_data()), HasSubstr("lines.jsonl:2: the key \"text\" is missing"));
}

TEST_F(TextDataTest, BadMixturesAreRefusedByKeyAndLine) {
  const auto refused = [&](const std::string& data) {
    write_data(data);
    const Finished finished = run("out", "");
    EXPECT_EQ(finished.status, 2) << data << '\n' << finished.output;
    EXPECT_EQ(times_in(finished.output, "\n"), 1) << finished.output;
    return finished.output;
  };
  const auto with_set = [&](const std::string& set) {
    return refused(concat(R"({"type": "mixture", "sets": [)", "\n    ", set, "]}"));
  };
  EXPECT_THAT(refused(R"({"type": "mixture", "sets": []})"), AllOf(HasSubstr("run.json:3:"), HasSubstr("data.sets")));
  EXPECT_THAT(refused(R"({"type": "mixture"})"), HasSubstr("\"sets\" is missing"));
  EXPECT_THAT(with_set(R"({"data": {"type": "text", "train": "text.txt"}, "weight": 0})"),
              AllOf(HasSubstr("run.json:4:"), HasSubstr("data.sets[0].weight"), HasSubstr("must be a number > 0")));
  EXPECT_THAT(with_set(R"({"data": {"type": "text", "train": "text.txt"}})"), HasSubstr("\"weight\" is missing"));
  EXPECT_THAT(with_set(R"({"data": {"type": "images", "train": "text.txt"}, "weight": 1})"),
              AllOf(HasSubstr("run.json:4:"), HasSubstr("data.sets[0].data.type"), HasSubstr("tokens")));
  EXPECT_THAT(with_set(R"({"data": {"type": "text", "train": "text.txt", "sequence_length": 8}, "weight": 1})"),
              AllOf(HasSubstr("run.json:4:"), HasSubstr("sequence_length"), HasSubstr("unknown key")));
  EXPECT_THAT(with_set(R"({"data": {"type": "text", "train": "text.txt", "tokenizer": "bytes"}, "weight": 1})"),
              AllOf(HasSubstr("run.json:4:"), HasSubstr("tokenizer")));
  EXPECT_THAT(with_set(R"({"data": {"type": "text", "train": "absent.txt"}, "weight": 1})"),
              AllOf(HasSubstr("run.json:4:"), HasSubstr("absent.txt")));
}

} // namespace
} // namespace trireme::tools
