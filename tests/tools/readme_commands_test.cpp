// The README's commands, in its order, in a folder that has what a clone has: each finds what the ones above it have
// made.
#include "shell.h"

#include <tests/support/folders.h>
#include <tests/support/page_blocks.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <cctype>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kReadme = test::source_dir() + "/README.md";

std::vector<std::string> commands() {
  std::vector<std::string> out;
  for (const test::PageBlock& block : test::blocks_of("README.md")) {
    for (const std::string& command : test::commands_of(block)) {
      if (block.language.empty()) {
        out.push_back(command);
      }
    }
  }
  return out;
}

bool begins(const std::string& text, const std::vector<std::string>& with) {
  return std::any_of(with.begin(), with.end(), [&](const std::string& word) { return text.starts_with(word); });
}

class ReadmeCommandsTest : public RunFolder {
 protected:
  ReadmeCommandsTest() {
    fs::copy(test::source_dir() + "/examples", folder / "examples", fs::copy_options::recursive);
    fs::create_directories(folder / "build");
    fs::create_directory_symlink(test::binary_dir(), folder / "build/release");
    std::string text;
    for (int i = 0; i < 3000; ++i) {
      text += concat("Line ", i, " of my own text.\n");
    }
    for (const char* name :
         {"mine.txt", "data/austen/train.txt", "data/austen/validation.txt"}) { // the latter come with ./quickstart
      fs::create_directories((folder / name).parent_path());
      write_file_atomically(folder / name, text);
    }
    write_file_atomically(folder / "hosts", "localhost slots=4\n");
    const std::string readme = read_file(kReadme);
    const size_t begin = readme.find("```json\n", readme.find("## Your own data"));
    write_file_atomically(folder / "mine.json", readme.substr(begin + 8, readme.find("```", begin + 8) - begin - 8));
  }
  Finished in_folder(const std::string& command) const {
    return sh(concat("cd \"", folder.string(), "\" && PATH=\"", test::binary_dir(), "/bin:$PATH\" && ", command), 300);
  }
  // A training ends after a few steps. One that is resumed has some left.
  static std::string shortened(const std::string& command) {
    const std::string few = " --set training.eval_batches=1 --set training.sample=null --set training.steps=";
    return command.starts_with("trireme train ")
               ? concat(command, few, command.find("--resume") == std::string::npos ? 2 : 3)
               : command;
  }
};

TEST_F(ReadmeCommandsTest, RunInItsOrder) {
  // install/built_by_quickstart, install/into_a_folder and install/programs run the parts of these; fashion_mnist needs
  // 60,000 images.
  const std::vector<std::string> elsewhere = {"./test", "cmake --install build/release --prefix ", "trireme doctor",
                                              "trireme data fetch fashion-mnist ",
                                              "trireme launch -n 2 -- build/release/bin/fashion_mnist_distributed "};
  int ran = 0;
  for (const std::string& command : commands()) {
    if (begins(command, elsewhere)) {
      continue;
    }
    if (command.starts_with("./quickstart")) { // what it trains
      const Finished run = in_folder(shortened("trireme train examples/austen/run.json -n 2 --out runs/austen"));
      ASSERT_EQ(run.status, 0) << run.output;
    } else if (command.starts_with("cmake --build build/release --target ")) {
      const fs::path program = folder / "build/release/bin" / command.substr(command.rfind(' ') + 1);
      EXPECT_TRUE(fs::exists(program)) << command << " does not make " << program;
    } else if (begins(command, {"trireme ", "build/release/bin/"})) {
      const Finished run = in_folder(shortened(command));
      EXPECT_EQ(run.status, 0) << command << '\n' << run.output;
      ++ran;
    } else {
      EXPECT_TRUE(command.empty() || std::isupper(static_cast<unsigned char>(command[0])) == 0)
          << "README.md: is this a command? " << command;
    }
  }
  EXPECT_GE(ran, 12);
  EXPECT_THAT(in_folder("trireme generate runs/mine --prompt \"Line \" --tokens 5").output, HasSubstr("Line "));
}

// The picture is what the command beside it draws.
TEST_F(ReadmeCommandsTest, ThePictureIsTheProgramsOwn) {
  const std::string readme = read_file(kReadme);
  const std::string ending = " --svg docs/zero_bubble.svg";
  const size_t end = readme.find(ending);
  ASSERT_NE(end, std::string::npos);
  const size_t begin = readme.rfind("trireme schedule ", end);
  const Finished run = in_folder(concat(readme.substr(begin, end - begin), " --svg drawn.svg"));
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_EQ(read_file(folder / "drawn.svg"), read_file(test::source_dir() + "/docs/zero_bubble.svg"))
      << "draw it again";
}

} // namespace
} // namespace trireme::tools
