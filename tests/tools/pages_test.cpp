// The commands and run files of docs/data.md, docs/fine_tuning.md, docs/generation.md and examples/finetune/README.md
// run in their order.
#include "page_folder.h"

#include <tests/support/page_blocks.h>

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

class PagesTest : public PageFolder {
 protected:
  PagesTest() {
    std::string text;
    for (int i = 0; i < 400; ++i) {
      text += concat("Line ", i, " of a text. ");
    }
    std::filesystem::create_directories(folder / "data/austen");
    for (const char* name : {"data/austen/emma.txt", "books.txt", "novels.txt"}) {
      write_file_atomically(folder / name, text);
    }
    std::string chats;
    for (int i = 0; i < 40; ++i) {
      chats +=
          concat(R"({"messages": [{"role": "user", "content": "Which line?"}, {"role": "assistant", "content": "Line )",
                 i, "\"}]}\n");
    }
    for (const char* name : {"chats.jsonl", "held_out.jsonl"}) {
      write_file_atomically(folder / name, chats);
    }
    make_smollm2();
    write_file_atomically(
        folder / "smollm2/chat_template.jinja",
        "{% for message in messages %}{{ message.role }}: {{ message.content }} {% endfor %}assistant: ");
  }
  // A page has the part of a run file that it is about.
  std::string with_the_rest(const std::string& part) const {
    const ordered_json of_page = ordered_json::parse(part.starts_with("\"") ? concat('{', part, '}') : part);
    ordered_json run = {{"model", {{"from", "smollm2"}, {"sequence_length", 32}}},
                        {"data", {{"type", "text"}, {"train", "novels.txt"}}},
                        {"training", {{"steps", 1}}},
                        {"engine", {{"train_batch_size", 2}, {"optimizer", {{"type", "AdamW"}}}}}};
    for (const auto& [key, section] : of_page.items()) {
      if (key == "data") {
        run[key] = section;
      } else {
        run[key].update(section);
      }
    }
    return run.dump();
  }
  void run_command(const std::string& command) const {
    if (!command.empty()) {
      const Finished run = in_folder(command);
      EXPECT_EQ(run.status, 0) << command << '\n' << run.output;
    }
  }
  // A small BERT with the same tokenizer stands for MiniLM.
  void make_minilm() const {
    const ordered_json run = {
        {"model",
         {{"type", "bert"},
          {"layers", 1},
          {"hidden", 16},
          {"heads", 2},
          {"sequence_length", 64},
          {"head", "classes"},
          {"classes", 6}}},
        {"data", {{"type", "labelled_text"}, {"train", "data/novels/train.jsonl"}, {"tokenizer", "letters.json"}}},
        {"training", {{"steps", 1}, {"export", "data/minilm"}}},
        {"engine", {{"train_batch_size", 2}}}};
    write_file_atomically(folder / "minilm.json", run.dump());
    run_command("trireme train minilm.json --out runs/minilm");
  }
  Finished train(const std::string& part, const std::string& out) const {
    write_file_atomically(folder / "page.json", with_the_rest(part));
    return few_steps(concat("trireme train page.json --out runs/", out));
  }
};

TEST_F(PagesTest, Data) {
  ASSERT_EQ(in_folder("echo \"{\\\"text\\\": \\\"a line\\\"}\" | gzip > web.jsonl.gz").status, 0);
  run_command("trireme data tokenize novels.txt --tokenizer smollm2 --out web");
  int files = 0, commands = 0;
  for (const test::PageBlock& block : test::blocks_of("docs/data.md")) {
    SCOPED_TRACE(block.where);
    if (block.language.starts_with("json")) {
      const Finished run = train(block.text, concat("data", ++files));
      EXPECT_EQ(run.status, 0) << run.output;
      if (block.text.find("mixture") != std::string::npos) {
        EXPECT_THAT(run.output, HasSubstr("samples read: "));
      }
    } else if (block.text.starts_with("trireme ")) {
      for (const std::string& command : test::commands_of(block)) {
        run_command(command);
        commands += command.empty() ? 0 : 1;
      }
    }
  }
  EXPECT_EQ(files, 4);
  EXPECT_EQ(commands, 1);
}

TEST_F(PagesTest, FineTuning) {
  int files = 0, commands = 0;
  for (const test::PageBlock& block : test::blocks_of("docs/fine_tuning.md")) {
    SCOPED_TRACE(block.where);
    if (block.language.starts_with("json")) {
      const bool lora = block.text.find("lora") != std::string::npos;
      const bool all = block.text.find("jsonl") != std::string::npos;
      const Finished run = train(block.text, lora ? "novels" : all ? "chats" : "frozen");
      EXPECT_EQ(run.status, 0) << run.output;
      EXPECT_THAT(run.output, HasSubstr(all ? "JSON lines: " : " trained"));
      ++files;
    } else {
      for (const std::string& command : test::commands_of(block)) {
        run_command(command);
        commands += command.empty() ? 0 : 1;
      }
    }
  }
  EXPECT_EQ(files, 3);
  EXPECT_EQ(commands, 4);
}

// Novels of ten short chapters, enough for sentences.py.
void write_novels(const std::filesystem::path& folder) {
  for (const char* name :
       {"emma", "mansfield-park", "northanger-abbey", "persuasion", "pride-and-prejudice", "sense-and-sensibility"}) {
    std::string text;
    for (int i = 0; i < 10 * 150; ++i) {
      text += i % 150 == 0 ? concat("\n\nCHAPTER ", i / 150 + 1, "\n\n") : "";
      text += concat("Line ", i, " tells of a walk in the garden of ", name, ". ");
    }
    write_file_atomically(folder / concat(name, ".txt"), text);
  }
}

TEST_F(PagesTest, FineTuningExample) {
  namespace fs = std::filesystem;
  for (const char* example : {"examples/finetune", "examples/smollm2"}) {
    fs::create_directories(folder / example);
    fs::copy(fs::path(test::source_dir()) / example, folder / example, fs::copy_options::recursive);
  }
  fs::rename(folder / "smollm2", folder / "data/smollm2");
  for (const char* name : {"train.txt", "validation.txt"}) {
    fs::copy(folder / "data/austen/emma.txt", folder / "data/austen" / name);
  }
  write_novels(folder / "data/austen");
  int trained = 0, commands = 0;
  for (const test::PageBlock& block : test::blocks_of("examples/finetune/README.md")) {
    SCOPED_TRACE(block.where);
    for (const std::string& command : block.language.empty() ? test::commands_of(block) : std::vector<std::string>()) {
      if (command.starts_with("python3 examples/finetune/")) {
        run_command(concat('"', test::python(), '"', command.substr(command.find(' '))));
        make_minilm();
      } else if (command.starts_with("trireme train ")) {
        const Finished run = few_steps(command);
        EXPECT_EQ(run.status, 0) << command << '\n' << run.output;
        ++trained;
      } else if (command.starts_with("trireme ")) {
        run_command(command);
        ++commands;
      }
    }
  }
  EXPECT_EQ(trained, 5);
  EXPECT_EQ(commands, 1);
  EXPECT_TRUE(fs::exists(folder / "data/smollm2-austen-adapter/adapter_model.safetensors"));
  EXPECT_TRUE(fs::exists(folder / "data/novels-adapter/adapter_model.safetensors"));
}

TEST_F(PagesTest, Generation) {
  std::filesystem::create_directories(folder / "data");
  std::filesystem::copy(folder / "smollm2", folder / "data/smollm2", std::filesystem::copy_options::recursive);
  ASSERT_EQ(train("{}", "mine").status, 0);
  int commands = 0;
  for (const test::PageBlock& block : test::blocks_of("docs/generation.md")) {
    SCOPED_TRACE(block.where);
    if (block.text.starts_with("{\"prompt\"")) { // the keys of a line of --json
      const Finished run =
          in_folder("trireme generate data/smollm2 --prompt \"It is\" --max-tokens 4 --temperature 0 --json");
      ASSERT_EQ(run.status, 0) << run.output;
      const ordered_json row = ordered_json::parse(run.output.substr(run.output.find('{')));
      std::string expected = "{";
      for (const auto& item : row.items()) {
        expected += concat(expected == "{" ? "" : ",", '"', item.key(), '"');
      }
      std::string keys = "{"; // "key": in the order of the page
      for (size_t at = block.text.find('"'); at != std::string::npos; at = block.text.find('"', at + 1)) {
        const size_t end = block.text.find('"', at + 1);
        if (block.text[end + 1] == ':') {
          keys += concat(keys == "{" ? "" : ",", block.text.substr(at, end + 1 - at));
        }
        at = end;
      }
      EXPECT_EQ(keys, expected);
    } else if (block.text.starts_with("trireme ")) {
      for (const std::string& command : test::commands_of(block)) {
        run_command(command);
        commands += command.empty() ? 0 : 1;
      }
    }
  }
  EXPECT_EQ(commands, 5);
}

} // namespace
} // namespace trireme::tools
