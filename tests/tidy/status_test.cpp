// Pages agree on what has run where, on what is not there yet, on times, and lead to each other.
#include "pages.h"

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>
#include <trireme/config/key_table.h>

#include <gmock/gmock.h>

#include <cctype>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace trireme::tidy {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kTable = "devices.md#what-has-run-where";

// The text of a section, up to the next heading of its level or one above; "" where there is none.
std::string section_of(const fs::path& page, const std::string& heading) {
  const std::string text = read_file(page);
  const size_t begin = text.find("\n" + heading + "\n");
  if (begin == std::string::npos) {
    return "";
  }
  return text.substr(begin, text.find("\n## ", begin + heading.size()) - begin);
}

// The bold sentences that begin the table of docs/devices.md.
std::string sentence_on_gpus() {
  const std::string section = section_of(kRoot / "docs/devices.md", "## What has run where");
  const size_t begin = section.find("**");
  const size_t end = section.find("**", begin + 2);
  return begin == std::string::npos || end == std::string::npos ? "" : section.substr(begin, end + 2 - begin);
}

// Sentences and rows of tables outside of code. A line that ends inside a sentence goes on in the next.
std::vector<std::string> sentences_of(const std::string& page) {
  std::string text;
  bool fenced = false;
  for (const std::string& line : split(page, '\n')) {
    if (line.starts_with("```")) {
      fenced = !fenced;
    } else if (!fenced) {
      const bool is_block = line.empty() || line.starts_with("|") || line.starts_with("#") || line.starts_with("- ");
      text += (is_block ? "\n" : " ") + line + (line.starts_with("|") ? "\n" : "");
    }
  }
  static const std::regex end(R"([.!?:;)] |\n)");
  const std::sregex_token_iterator begin(text.begin(), text.end(), end, -1), none;
  return {begin, none};
}

bool claims_what_has_run(const std::string& sentence) {
  static const std::regex gpu(R"(\bGPUs?\b|\bcards?\b|\bNCCL\b|\bnccl\b|\bH[12]00\b)");
  static const std::regex claim(
      R"(not (yet )?(been )?(run|tried|tested|seen)|(has|have|had) not (yet )?run|not yet|never (been )?(run|tried|tested|seen|sent)|no (test|machine)\b|at hand|(was|were|been|is|are) (seen|shown|tested|tried)|\bseen on\b|have run on)",
      std::regex::icase);
  return std::regex_search(sentence, gpu) && std::regex_search(sentence, claim);
}

TEST(StatusTest, TheReadmeSaysOfGpusWhatTheTableSays) {
  ASSERT_GT(sentence_on_gpus().size(), 50u) << "docs/devices.md: \"What has run where\" begins with a bold sentence";
  EXPECT_THAT(read_file(kRoot / "README.md"), HasSubstr(sentence_on_gpus()));
}

TEST(StatusTest, OnlyTheTableSaysWhatHasRunOnAGpu) {
  for (const fs::path& page : pages()) {
    if (page.filename() == "devices.md") {
      continue;
    }
    std::string text = read_file(page);
    if (const size_t at = text.find(sentence_on_gpus()); at != std::string::npos) {
      text.erase(at, sentence_on_gpus().size());
    }
    for (const std::string& sentence : sentences_of(text)) {
      const bool is_linked =
          sentence.find(kTable) != std::string::npos || sentence.find("(#what-has-run-where") != std::string::npos;
      EXPECT_TRUE(is_linked || !claims_what_has_run(sentence))
          << page << " says by itself what has run where; link to docs/" << kTable << ": \"" << sentence << '"';
    }
  }
}

// What pages said before there was the table.
TEST(StatusTest, EarlierSentencesWouldBeFound) {
  for (const char* sentence :
       {"**It has not run on a GPU yet.**", "no machine with a GPU was at hand",
        "split layers have run on the CPU, not yet on a GPU", "for `nccl`, which has not run on a GPU yet",
        "CUDA, seen on an H100 and an H200, one at a time", "NCCL between GPUs has not been seen yet",
        "What is said here of GPUs was shown on a simulated device"}) {
    EXPECT_TRUE(claims_what_has_run(sentence)) << sentence;
  }
  for (const char* sentence : {"a GPU of its own", "On a GPU the same step runs ahead of the device",
                               "groups over NCCL have one communicator"}) {
    EXPECT_FALSE(claims_what_has_run(sentence)) << sentence;
  }
}

std::set<std::string> code_in(const std::string& text) {
  std::set<std::string> out;
  const std::vector<std::string> parts = split(text, '`');
  for (size_t i = 1; i < parts.size(); i += 2) {
    out.insert(parts[i]);
  }
  return out;
}

// Paths below "engine" without it. Keys of a section that is itself not there yet are left out.
std::set<std::string> keys_that_are_not_yet() {
  std::set<std::string> out;
  for (const config::Section& section : config::all_sections()) {
    for (const config::Key& key : section.keys) {
      if (key.verdict == config::Verdict::not_yet && section.path != "engine.bfloat16") { // another name of bf16
        const std::string path = section.path.empty() ? std::string(key.name) : concat(section.path, '.', key.name);
        out.insert(path.starts_with("engine.") ? path.substr(7) : path);
      }
    }
  }
  std::erase_if(out, [all = out](const std::string& path) {
    const size_t dot = path.rfind('.');
    return dot != std::string::npos && all.count(path.substr(0, dot)) == 1;
  });
  return out;
}

TEST(StatusTest, TheReadmesListIsThatOfTheConfiguration) {
  const std::string section = section_of(kRoot / "README.md", "## Not yet");
  std::string bullets;
  std::string rest;
  for (const std::string& line : split(section, '\n')) {
    (line.starts_with("- ") ? bullets : rest) += line + "\n";
  }
  EXPECT_EQ(code_in(bullets), keys_that_are_not_yet());
  std::set<std::string> refused;
  for (const config::Section& section : config::all_sections()) {
    for (const config::Key& key : section.keys) {
      if (key.verdict == config::Verdict::refused) {
        refused.emplace(key.name);
      }
    }
  }
  EXPECT_GE(code_in(rest).size(), 10u);
  for (const std::string& key : code_in(rest)) {
    EXPECT_EQ(refused.count(key), 1u) << "README.md says that " << key << " is refused";
  }
}

TEST(StatusTest, TimesAreTheSameOnEveryPage) {
  std::smatch match;
  const std::string readme = read_file(kRoot / "README.md");
  ASSERT_TRUE(std::regex_search(readme, match, std::regex(R"(\n\./test +# (about \d+ minutes on 2 cores))")));
  EXPECT_THAT(read_file(kRoot / "CONTRIBUTING.md"), HasSubstr(match[1].str()));
}

// "## What has run where" is #what-has-run-where.
std::set<std::string> anchors_of(const fs::path& page) {
  std::set<std::string> out;
  for (const std::string& line : split(read_file(page), '\n')) {
    if (line.starts_with("#")) {
      std::string anchor;
      for (const char c : line.substr(line.find(' ') + 1)) {
        if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_') {
          anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        } else if (c == ' ') {
          anchor += '-';
        }
      }
      out.insert(anchor);
    }
  }
  return out;
}

TEST(LinksTest, LeadToFilesAndHeadings) {
  static const std::regex link(R"(\]\(([^)\s]+)\))");
  int seen = 0;
  for (const fs::path& page : pages()) {
    const std::string text = read_file(page);
    bool fenced = false;
    for (const std::string& line : split(text, '\n')) {
      fenced = line.starts_with("```") ? !fenced : fenced;
      for (std::sregex_iterator it(line.begin(), line.end(), link), end; !fenced && it != end; ++it) {
        const std::string target = (*it)[1];
        const size_t hash = target.find('#');
        const fs::path file = hash == 0 ? page : page.parent_path() / target.substr(0, hash);
        const bool is_page =
            target.find(".md") != std::string::npos || target.find(".svg") != std::string::npos || hash == 0;
        if (target.find("://") != std::string::npos || !is_page) {
          continue; // the web, or code: [](at::Tensor x)
        }
        ++seen;
        ASSERT_TRUE(fs::exists(file)) << page << " links to " << target;
        if (hash != std::string::npos) {
          EXPECT_EQ(anchors_of(file).count(target.substr(hash + 1)), 1u) << page << " links to " << target;
        }
      }
    }
  }
  EXPECT_GT(seen, 100);
}

TEST(LinksTest, APageIsLinkedWhereItIsNamed) {
  static const std::regex quoted(R"((^|[^\[])`(docs/[a-z_]+|ARCHITECTURE|CONTRIBUTING)\.md`)");
  for (const fs::path& page : pages()) {
    for (const std::string& sentence : sentences_of(read_file(page))) {
      EXPECT_FALSE(std::regex_search(sentence, quoted))
          << page << ": write [docs/page.md](docs/page.md) in \"" << sentence << '"';
    }
  }
}

} // namespace
} // namespace trireme::tidy
