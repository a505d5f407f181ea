// docs/models.md: its run files train, its commands run in its order, and what it refuses is refused in those words.
#include "page_folder.h"

#include <tests/support/page_blocks.h>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

class ModelsPageTest : public PageFolder {
 protected:
  ModelsPageTest() {
    std::string text;
    for (int i = 0; i < 1500; ++i) {
      text += concat("Line ", i, " of a text. ");
    }
    fs::create_directories(folder / "data/austen");
    for (const char* name : {"emma.txt", "train.txt", "validation.txt"}) {
      write_file_atomically(folder / "data/austen" / name, text);
    }
    for (const char* name : {"train-images.gz", "test-images.gz"}) { // 16 images of 8 x 8
      write_file_atomically(
          folder / name, std::string("\0\0\x08\x03\0\0\0\x10\0\0\0\x08\0\0\0\x08", 16) + std::string(16 * 64, '\x42'));
    }
    for (const char* name : {"train-labels.gz", "test-labels.gz"}) {
      write_file_atomically(folder / name, std::string("\0\0\x08\x01\0\0\0\x10", 8) + std::string(16, '\x03'));
    }
    fs::create_directories(folder / "mamba");
    write_file_atomically(folder / "mamba/config.json", "{\n  \"model_type\": \"mamba\"\n}\n");
  }
};

TEST_F(ModelsPageTest, RunsInItsOrder) {
  ASSERT_NO_FATAL_FAILURE(make_smollm2());
  int files = 0, commands = 0;
  for (const test::PageBlock& block : test::blocks_of("docs/models.md")) {
    SCOPED_TRACE(block.where);
    if (block.text.starts_with("{\"text\"")) { // samples of labelled_text
      std::string lines;
      for (int i = 0; i < 16; ++i) {
        lines += block.text;
      }
      write_file_atomically(folder / "train.jsonl", lines);
      write_file_atomically(folder / "validation.jsonl", block.text);
    } else if (block.language.starts_with("json")) {
      write_file_atomically(folder / "run.json", block.text);
      ++files;
      if (block.text.find("\"from\"") == std::string::npos) { // the page has a command for that one
        const bool images = block.text.find("alexnet") != std::string::npos;
        const Finished run = few_steps(
            concat("trireme train run.json -n 2 --out runs/", files, images ? " --set engine.train_batch_size=8" : ""));
        EXPECT_EQ(run.status, 0) << run.output;
      }
    } else if (block.text.starts_with("$ ")) { // a session: the command and what it prints
      write_file_atomically(folder / "run.json", R"({"model": {"from": "mamba"}})");
      const std::vector<std::string> lines = split(block.text, '\n');
      std::string output = in_folder(lines.at(0).substr(2)).output;
      if (const size_t at = output.find(folder.string()); at != std::string::npos) {
        output.replace(at, folder.string().size(), "/home/me");
      }
      EXPECT_EQ(output, lines.at(1) + '\n');
      ++commands;
    } else {
      for (const std::string& command : test::commands_of(block)) {
        if (command.find("--resume") != std::string::npos) { // without the folder, as the page says
          fs::rename(folder / "smollm2", folder / "elsewhere");
        }
        if (!command.empty()) {
          const Finished run = command.starts_with("trireme train ") ? few_steps(command) : in_folder(command);
          EXPECT_EQ(run.status, 0) << command << '\n' << run.output;
          ++commands;
        }
      }
    }
  }
  EXPECT_EQ(files, 4);
  EXPECT_EQ(commands, 4);

  // The example that the page names.
  fs::create_directories(folder / "examples");
  fs::copy(test::source_dir() + "/examples/smollm2", folder / "examples/smollm2", fs::copy_options::recursive);
  fs::rename(folder / "elsewhere", folder / "data/smollm2");
  const Finished example = few_steps("trireme train examples/smollm2/run.json -n 2 --out runs/example");
  EXPECT_EQ(example.status, 0) << example.output;
  EXPECT_TRUE(fs::exists(folder / "data/smollm2-austen/model.safetensors"));
}

} // namespace
} // namespace trireme::tools
