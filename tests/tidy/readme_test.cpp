// The README's six lines are the real difference between the two programs.
#include <tests/support/folders.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

using trireme::test::source_dir;

std::string read(const std::string& file) {
  std::ifstream in(source_dir() + "/" + file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Lines that the second file has and the first has not, without the comment at the top.
std::vector<std::string> added_lines(const std::string& first, const std::string& second) {
  const std::string command = "diff \"" + source_dir() + "/" + first + "\" \"" + source_dir() + "/" + second + '"';
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::vector<std::string> lines;
  std::array<char, 1000> line{};
  while (std::fgets(line.data(), line.size(), pipe.get()) != nullptr) {
    std::string text = line.data();
    if (text.rfind("> ", 0) == 0 && text.rfind("> //", 0) != 0) {
      lines.push_back(text.substr(2, text.size() - 3));
    }
  }
  return lines;
}

TEST(ReadmeTest, SixLinesMakeALoopDistributed) {
  const std::vector<std::string> lines =
      added_lines("examples/fashion_mnist/train_one_process.cpp", "examples/fashion_mnist/train_distributed.cpp");
  EXPECT_THAT(lines, testing::SizeIs(testing::AllOf(testing::Ge(1u), testing::Le(6u))));
  const std::string readme = read("README.md");
  for (const std::string& line : lines) {
    EXPECT_THAT(readme, testing::HasSubstr("+" + line)) << "the README shows another difference";
  }
  const size_t begin = readme.find("```diff\n") + 8;
  EXPECT_LT(std::count(readme.begin(), readme.begin() + static_cast<std::ptrdiff_t>(begin), '\n'), 60)
      << "the six lines come first";
  std::istringstream shown(readme.substr(begin, readme.find("```", begin) - begin));
  const std::string before = read("examples/fashion_mnist/train_one_process.cpp");
  for (std::string line; std::getline(shown, line);) {
    if (line != " ..." && line[0] != '+') {
      EXPECT_THAT(before, testing::HasSubstr("\n" + line.substr(1) + "\n")) << "the README shows another program";
    }
  }
}

} // namespace
