// The JSON of the pages is configuration that the reader takes: whole run files, and parts of one.
#include <tests/support/folders.h>
#include <tests/support/page_blocks.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/config/deepspeed_json.h>
#include <trireme/config/key_table.h>
#include <trireme/config/run_types.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace trireme {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::PageBlock;

const fs::path kTop = test::source_dir();

std::vector<PageBlock> all_blocks() {
  std::vector<fs::path> pages = {"README.md"};
  for (const char* folder : {"docs", "examples"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kTop / folder)) {
      if (entry.path().extension() == ".md") {
        pages.push_back(fs::relative(entry.path(), kTop));
      }
    }
  }
  std::vector<PageBlock> out;
  for (const fs::path& page : pages) {
    for (PageBlock& block : test::blocks_of(page)) {
      out.push_back(std::move(block));
    }
  }
  return out;
}

// An object, or the members of one.
json parsed(const std::string& text) {
  const json whole = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return whole.is_discarded() ? json::parse("{" + text + "}", nullptr, false) : whole;
}

// The outermost section of a run file that has all of these keys.
std::string section_of(const json& part) {
  std::map<size_t, std::string> found; // by depth
  for (const config::Section& section : config::all_sections()) {
    std::set<std::string> keys;
    for (const config::Key& key : section.keys) {
      keys.emplace(key.name);
    }
    bool has_all = true;
    for (const auto& [key, value] : part.items()) {
      has_all = has_all && keys.count(key) == 1;
    }
    if (has_all) {
      found.try_emplace(section.path.empty() ? 0 : split(std::string(section.path), '.').size(), section.path);
    }
  }
  return found.empty() ? "none" : found.begin()->second;
}

// With the types of the program of docs/own_model.md; tests/train runs it.
const config::RunTypes& types() {
  static const config::RunTypes all = [] {
    using config::RunConfig;
    config::RunTypes out = config::built_in_types();
    const auto write_nothing = [](const RunConfig&) { return nlohmann::ordered_json::object(); };
    out.models.push_back({.name = "mlp",
                          .read = [](const JsonNode&, const config::RunPaths&,
                                     RunConfig& run) { run.model.kind = config::ModelConfig::Kind::of_program; },
                          .write = write_nothing,
                          .of_program = true});
    out.data.push_back({.name = "spirals",
                        .read = [](const JsonNode&, const config::RunPaths&,
                                   RunConfig& run) { run.data.kind = data::DataOptions::Kind::of_program; },
                        .write = write_nothing,
                        .of_program = true});
    return out;
  }();
  return all;
}

// Reads it as what it is: the engine's part, which a program of one's own has by itself, or a run file, of which a part
// leaves something open.
void read(const json& part, const std::string& where) {
  const std::string section = section_of(part);
  if (section == "engine") {
    config::read_deepspeed(JsonNode::parse(part.dump(1), where));
    return;
  }
  json run = part;
  if (!part.contains("model")) {
    run = {
        {"model",
         {{"type", "gpt"}, {"layers", 2}, {"hidden", 32}, {"heads", 2}, {"sequence_length", 16}, {"vocab_size", 256}}},
        {"data", {{"type", "text"}, {"train", "train.txt"}, {"tokenizer", "bytes"}}},
        {"training", {{"steps", 10000}}},
        {"engine", {{"train_batch_size", 8}}}};
    if (part.contains("data") && part["data"].contains("sets")) { // a mixture has no files of its own
      run.erase("data");
    }
    run[json::json_pointer(section.empty() ? "" : "/" + join(split(section, '.'), "/"))].merge_patch(part);
  }
  config::read_run(JsonNode::parse(run.dump(1), where), kTop, {}, types());
}

TEST(JsonOfPagesTest, IsReadByTheReader) {
  int seen = 0;
  for (const PageBlock& block : all_blocks()) {
    const json part = parsed(block.text);
    if (block.language != "json") {
      EXPECT_FALSE(block.language.empty() && part.is_object() && !part.empty())
          << block.where << ": begin the block with ```json";
      continue;
    }
    ASSERT_TRUE(part.is_object()) << block.where << " is no JSON";
    ASSERT_NE(section_of(part), "none") << block.where << ": no section of a run file has these keys together";
    try {
      read(part, block.where);
    } catch (const InputError& error) {
      ADD_FAILURE() << block.where << ": " << error.what();
    }
    ++seen;
  }
  EXPECT_GE(seen, 15);
}

} // namespace
} // namespace trireme
