// What the pages and the messages name exists: commands, options, files, keys, variables.
#include "pages.h"

#include <tools/trireme/commands.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>
#include <trireme/config/key_table.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

namespace trireme {
namespace {

namespace fs = std::filesystem;
using tidy::files_below;
using tidy::kRoot;
using tidy::pages;

// A piece of text and where it stands.
struct Piece {
  fs::path file;
  std::string text;
};

// What stands in a page as code: fenced, indented by four, or between backticks.
std::vector<Piece> code_of(const fs::path& page) {
  std::vector<Piece> out;
  std::string prose;
  bool fenced = false;
  for (const std::string& line : split(read_file(page), '\n')) {
    if (line.starts_with("```")) {
      fenced = !fenced;
    } else if (fenced || line.starts_with("    ")) {
      out.push_back({page, line});
    } else {
      prose += line + "\n";
    }
  }
  const std::vector<std::string> parts = split(prose, '`');
  for (size_t i = 1; i < parts.size(); i += 2) {
    std::string text = parts[i];
    std::replace(text.begin(), text.end(), '\n', ' ');
    out.push_back({page, text});
  }
  return out;
}

std::vector<Piece> all_code() {
  std::vector<Piece> out;
  for (const fs::path& page : pages()) {
    for (Piece& piece : code_of(page)) {
      out.push_back(std::move(piece));
    }
  }
  return out;
}

// The texts between double quotes of the library and the tools, raw ones too; neighbours count as one.
std::vector<Piece> literals() {
  std::vector<Piece> out;
  for (const char* folder : {"trireme", "tools"}) {
    for (const fs::path& file : files_below(folder, {".cpp", ".h"})) {
      if (file.filename() == "report_assets.cpp") {
        continue; // CSS and JavaScript
      }
      const std::string source = read_file(file);
      std::string text;
      bool inside = false;
      bool between = false; // only spaces since the last text
      for (size_t i = 0; i < source.size(); ++i) {
        const char c = source[i];
        if (inside) {
          if (c == '\\' && i + 1 < source.size()) {
            text += source[++i] == 'n' ? '\n' : source[i];
          } else if (c == '"') {
            inside = false;
            between = true;
          } else {
            text += c;
          }
        } else if (source.compare(i, 2, "//") == 0) {
          i = std::min(source.find('\n', i), source.size());
        } else if (c == '\'' &&
                   (i == 0 || std::isalnum(static_cast<unsigned char>(source[i - 1])) == 0)) { // '"', not 1'000
          i = source.find('\'', i + (source[i + 1] == '\\' ? 3 : 1));
        } else if (source.compare(i, 2, "R\"") == 0) {
          const size_t begin = source.find('(', i);
          const std::string closing = ")" + source.substr(i + 2, begin - i - 2) + "\"";
          const size_t end = source.find(closing, begin);
          text += source.substr(begin + 1, end - begin - 1);
          i = end + closing.size() - 1;
          between = true;
        } else if (c == '"') {
          inside = true;
        } else if (between && !std::isspace(static_cast<unsigned char>(c))) {
          out.push_back({file, text});
          text.clear();
          between = false;
        }
      }
    }
  }
  return out;
}

// All that is written in the repository but its pages.
const std::string& repository() {
  static const std::string all = [] {
    std::string out = read_file(kRoot / "quickstart") + read_file(kRoot / "test") + read_file(kRoot / "CMakeLists.txt");
    for (const char* folder : {"trireme", "tools", "tests", "examples", "benchmarks", "cmake", "scripts"}) {
      for (const fs::path& file : files_below(folder, {".cpp", ".h", ".cu", ".py", ".txt", ".cmake", ".sh", ".c"})) {
        if (file.filename() != "texts_test.cpp") {
          out += read_file(file);
        }
      }
    }
    return out + read_file(kRoot / "benchmarks/run") + read_file(kRoot / "scripts/structure");
  }();
  return all;
}

bool in_repository(const std::string& text) {
  return repository().find(text) != std::string::npos;
}

const std::map<std::string, std::set<std::string>>& commands() {
  static const std::map<std::string, std::set<std::string>> all = [] {
    std::map<std::string, std::set<std::string>> out = {{"agent", {}}}; // for launchers, not for people
    for (const tools::CommandEntry& entry : tools::all_commands()) {
      out[entry.name] = {entry.options.begin(), entry.options.end()};
    }
    return out;
  }();
  return all;
}

const std::set<std::string>& keys() {
  static const std::set<std::string> all = [] {
    std::set<std::string> out;
    for (const config::Section& section : config::all_sections()) {
      for (const config::Key& key : section.keys) {
        out.emplace(key.name);
      }
    }
    return out;
  }();
  return all;
}

template <class Visit>
void for_each_match(const std::string& text, const std::regex& pattern, const Visit& visit) {
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) {
    visit(*it);
  }
}

// Every "trireme COMMAND" in `text`, with the words behind it on its line; "" where there is no such command.
template <class Visit>
int for_each_command(const std::string& text, const Visit& visit) {
  static const std::regex call(R"((^|[^A-Za-z0-9_.:-])trireme(-rank)? ([a-z][a-z-]*)( [a-z][a-z-]*)?([^\n]*))");
  int count = 0;
  for_each_match(text, call, [&](const std::smatch& match) {
    const std::string one = match[3];
    const std::string two = one + match[4].str();
    const std::string name = commands().count(two) == 1 ? two : commands().count(one) == 1 ? one : "";
    visit(name, match[0].str(), match[4].str() + match[5].str());
    ++count;
  });
  return count;
}

TEST(TextsTest, CommandsOfThePagesExist) {
  int seen = 0;
  for (const Piece& piece : all_code()) {
    if (piece.text.find("# all-reduce on one host") != std::string::npos) {
      continue; // a comment: "trireme over shared memory"
    }
    seen += for_each_command(piece.text, [&](const std::string& name, const std::string& found, const std::string&) {
      EXPECT_NE(name, "") << piece.file << " names \"" << found << '"';
    });
  }
  EXPECT_GT(seen, 40);
}

TEST(TextsTest, CommandsOfTheMessagesExist) {
  const std::set<std::string> prose = {"starts", "hang"}; // "trireme starts its agents itself", "trireme hang dump"
  int seen = 0;
  for (const Piece& piece : literals()) {
    seen += for_each_command(piece.text, [&](const std::string& name, const std::string& found, const std::string&) {
      const std::vector<std::string> words = split(found, ' ');
      const bool is_prose = words.size() > 1 && std::any_of(prose.begin(), prose.end(), [&](const std::string& word) {
                              return found.find("trireme " + word) != std::string::npos;
                            });
      EXPECT_TRUE(!name.empty() || is_prose) << piece.file << " names \"" << found << '"';
    });
  }
  EXPECT_GT(seen, 20);
}

// Options of programs that are not ours.
const std::set<std::string> kForeignOptions = {
    "--no-python",     "--build",           "--preset",      "--signal",      "--extract",          "--quiet",
    "--install",       "--prefix",          "--epochs",      "--gtest",       "--standalone",       "--nproc-per-node",
    "--nnodes",        "--node-rank",       "--master-addr", "--master-port", // torchrun
    "--ntasks",        "--ntasks-per-node", "--open-mode",   "--requeue",     "--kill-on-bad-exit", "--pty",
    "--gpus-per-node", "--cpus-per-task", // Slurm
    "--from-literal"};

TEST(TextsTest, OptionsExist) {
  static const std::regex option(R"((^|[^A-Za-z0-9_-])(--[a-z][a-z-]*))");
  int seen = 0;
  const auto check = [&](const Piece& piece) {
    std::set<std::string> of_commands;
    for_each_command(piece.text, [&](const std::string& name, const std::string& found, const std::string& rest) {
      if (name.empty()) {
        return;
      }
      const std::string own = rest.substr(0, rest.find(" -- "));
      for_each_match(own.substr(0, own.find(" #")), option, [&](const std::smatch& match) {
        of_commands.insert(match[2].str());
        if (match[2] != "--help") {
          EXPECT_EQ(commands().at(name).count(match[2]), 1u)
              << piece.file << ": trireme " << name << " has no " << match[2] << ", in \"" << found << '"';
        }
        ++seen;
      });
    });
    for_each_match(piece.text, option, [&](const std::smatch& match) {
      const std::string word = match[2];
      const bool of_any = std::any_of(commands().begin(), commands().end(),
                                      [&](const auto& command) { return command.second.count(word) == 1; });
      // Examples and benchmarks read theirs by name.
      const bool known = of_any || of_commands.count(word) == 1 || kForeignOptions.count(word) == 1 ||
                         word == "--help" || word == "--version" || in_repository("\"" + word + "\"") ||
                         in_repository("\"" + word.substr(2) + "\"");
      EXPECT_TRUE(known) << piece.file << " names " << word << " in \"" << piece.text << '"';
      ++seen;
    });
  };
  for (const Piece& piece : all_code()) {
    check(piece);
  }
  for (const Piece& piece : literals()) {
    check(piece);
  }
  EXPECT_GT(seen, 150);
}

// Whether the repository has it: from its top or from trireme/, "*" for any name, a header or source without its
// ending.
bool file_exists(std::string path) {
  while (!path.empty() && (path.back() == '.' || path.back() == ',' || path.back() == '/' || path.back() == ':')) {
    path.pop_back();
  }
  const size_t star = path.find('*');
  if (star != std::string::npos) {
    const size_t slash = path.rfind('/', star);
    const std::string begin = path.substr(slash + 1, star - slash - 1);
    for (const auto& entry : fs::directory_iterator(kRoot / path.substr(0, slash))) {
      const std::string name = entry.path().filename();
      if (name.starts_with(begin) && name.ends_with(path.substr(star + 1))) {
        return true;
      }
    }
    return false;
  }
  for (const fs::path& top : {kRoot, kRoot / "trireme"}) {
    for (const char* ending : {"", ".h", ".cpp"}) {
      if (fs::exists(top / (path + ending))) {
        return true;
      }
    }
  }
  return false;
}

TEST(TextsTest, FilesExist) {
  static const std::regex path(
      R"((^|[^A-Za-z0-9_./-])((examples|docs|tests|trireme|tools|benchmarks|scripts|cmake)/[A-Za-z0-9_./*-]+))");
  int seen = 0;
  const auto check = [&](const Piece& piece) {
    for_each_match(piece.text, path, [&](const std::smatch& match) {
      EXPECT_TRUE(file_exists(match[2])) << piece.file << " names " << match[2];
      ++seen;
    });
  };
  for (const fs::path& page : pages()) {
    check({page, read_file(page)});
  }
  for (const Piece& piece : literals()) {
    check(piece);
  }
  EXPECT_GT(seen, 60);
}

TEST(TextsTest, ProgramsOfTheBuildExist) {
  static const std::regex program(R"(build/[a-z]+/bin/([A-Za-z0-9_-]+))");
  int seen = 0;
  for (const fs::path& page : pages()) {
    for_each_match(read_file(page), program, [&](const std::smatch& match) {
      const std::string name = match[1];
      EXPECT_TRUE(in_repository("add_executable(" + name + " ") || in_repository("trireme_example(" + name + " "))
          << page << " names " << name;
      ++seen;
    });
  }
  EXPECT_GT(seen, 3);
}

// "engine.zero_optimization.stage", with or without the part of the run file.
bool key_exists(const std::string& path) {
  for (const config::Section& section : config::all_sections()) {
    for (const config::Key& key : section.keys) {
      const std::string full = section.path.empty() ? std::string(key.name) : concat(section.path, '.', key.name);
      if (full == path || full == "engine." + path) {
        return true;
      }
    }
  }
  return false;
}

TEST(TextsTest, KeysExist) {
  static const std::regex dotted(
      R"((^|[^A-Za-z0-9_./-])((engine|training|parallel|model|data|pipeline|zero_optimization|optimizer|scheduler|fp16|bf16|checkpoint|activation_checkpointing)(\.[a-z][a-z0-9_]*)+)(\(|/)?)");
  static const std::regex quoted("\"([a-z][a-z0-9_]*)\": ");
  const std::set<std::string> endings = {"json", "md", "h", "cpp", "pt", "py", "txt", "safetensors"};
  int seen = 0;
  const auto check = [&](const Piece& piece) {
    for_each_match(piece.text, dotted, [&](const std::smatch& match) {
      const std::string path = match[2];
      if (match[5].length() > 0 || endings.count(path.substr(path.rfind('.') + 1)) == 1) {
        return; // a call, or the name of a file
      }
      const bool of_program = piece.file.filename() == "own_model.md" && !path.starts_with("engine");
      const bool parameter = path.starts_with("model.embed_tokens") || path.starts_with("model.layers") ||
                             path.starts_with("model.norm"); // a Llama's, in Hugging Face's files
      if (of_program || parameter) {
        return;
      }
      EXPECT_TRUE(key_exists(path)) << piece.file << " names the key " << path << " in \"" << piece.text << '"';
      ++seen;
    });
    for_each_match(piece.text, quoted, [&](const std::smatch& match) {
      // A key of the configuration, or of a file that the program writes.
      EXPECT_TRUE(keys().count(match[1]) == 1 || in_repository("\"" + match[1].str() + "\""))
          << piece.file << " names \"" << match[1] << "\" in " << piece.text;
      ++seen;
    });
  };
  for (const Piece& piece : all_code()) {
    check(piece);
  }
  for (const Piece& piece : literals()) {
    check(piece);
  }
  EXPECT_GT(seen, 80);
}

// A word_with_underscores between backticks is a key or stands in a source.
TEST(TextsTest, NamesExist) {
  static const std::regex name(R"(([a-z][a-z0-9]*(_[a-z0-9]+)+)(\(\))?)");
  int seen = 0;
  for (const Piece& piece : all_code()) {
    std::smatch match;
    if (std::regex_match(piece.text, match, name) && piece.text != "snake_case") {
      EXPECT_TRUE(keys().count(match[1]) == 1 || in_repository(match[1])) << piece.file << " names " << piece.text;
      ++seen;
    }
  }
  EXPECT_GT(seen, 200);
}

TEST(TextsTest, VariablesExist) {
  static const std::regex variable("TRIREME_[A-Z][A-Z_]*[A-Z]");
  int seen = 0;
  for (const fs::path& page : pages()) {
    for_each_match(read_file(page), variable, [&](const std::smatch& match) {
      EXPECT_TRUE(in_repository(match[0])) << page << " names " << match[0];
      ++seen;
    });
  }
  EXPECT_GT(seen, 10);
}

} // namespace
} // namespace trireme
