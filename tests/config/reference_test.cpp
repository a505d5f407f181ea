#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>
#include <trireme/config/key_table.h>
#include <trireme/config/reference.h>
#include <trireme/config/run_file.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <set>
#include <vector>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

const std::string kSchema = test::source_dir() + "/docs/run.schema.json";
const std::string kPage = test::source_dir() + "/docs/configuration.md";

class ReferenceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (std::getenv("TRIREME_WRITE_DOCS") != nullptr) {
      write_file_atomically(kSchema, run_schema().dump(2) + "\n");
      write_file_atomically(kPage, configuration_page());
    }
  }
};

// Paths of all properties, however deep in the schema's conditions they are.
void collect(const ordered_json& schema, const std::string& path, std::set<std::string>& out) {
  if (schema.is_array()) {
    for (const auto& element : schema) {
      collect(element, path, out);
    }
    return;
  }
  if (!schema.is_object()) {
    return;
  }
  for (const auto& [word, value] : schema.items()) {
    if (word == "properties") {
      for (const auto& [key, below] : value.items()) {
        const std::string inner = path.empty() ? key : path + "." + key;
        out.insert(inner);
        collect(below, inner, out);
      }
    } else if (word == "anyOf" || word == "allOf" || word == "then" || word == "items") {
      collect(value, path, out);
    }
  }
}

TEST_F(ReferenceTest, TheSchemaOnDiskIsTheTables) {
  EXPECT_EQ(read_file(kSchema), run_schema().dump(2) + "\n")
      << "Run this program with TRIREME_WRITE_DOCS=1 and look at the difference.";
}

TEST_F(ReferenceTest, ThePageOnDiskIsTheTables) {
  EXPECT_EQ(read_file(kPage), configuration_page())
      << "Run this program with TRIREME_WRITE_DOCS=1 and look at the difference.";
}

// "local_sgd: steps between two meetings": what begins a row keeps its case where it is a key or a value.
TEST_F(ReferenceTest, NamesAtTheBeginningOfARowKeepTheirCase) {
  const std::string page = configuration_page();
  int seen = 0;
  for (const Section& section : all_sections()) {
    for (const Key& key : section.keys) {
      const std::string text(key.text);
      const std::string word = text.substr(0, text.find_first_of(" :,"));
      const bool is_value = text[word.size()] == ':' || text[word.size()] == ',';
      if (is_value || word.find('_') != std::string::npos) {
        EXPECT_THAT(page, HasSubstr(concat("| ", text, " |"))) << section.path << '.' << key.name;
        ++seen;
      }
    }
  }
  EXPECT_GT(seen, 25);
}

TEST_F(ReferenceTest, SchemaAndTableHaveTheSameKeys) {
  std::set<std::string> in_schema;
  collect(ordered_json::parse(read_file(kSchema)), "", in_schema);
  std::set<std::string> in_table = {"$schema"};
  for (const Section& section : all_sections()) {
    for (const Key& key : section.keys) {
      if (!key.type.empty()) {
        const std::string path = section.path.empty() ? std::string(key.name) : concat(section.path, '.', key.name);
        in_table.insert(path);
        const ValueType type = ValueType::parse(key.type);
        if (type.kind == ValueType::Kind::switch_) {
          for (const std::string& word : type.words) {
            in_table.insert(concat(path, '.', word));
          }
        }
      }
    }
  }
  EXPECT_EQ(in_schema, in_table);
  EXPECT_GT(in_schema.size(), 280u);
}

// Valid run files that have, together, each section in each of its forms.
std::vector<JsonNode> all_forms() {
  std::vector<JsonNode> out;
  const auto add = [&](const std::string& model, const std::string& data, const std::string& optimizer,
                       const std::string& scheduler) {
    out.push_back(JsonNode::parse(concat(R"({"model": )", model, R"(, "data": )", data, R"(, "training": {"steps": 1},
      "engine": {"train_batch_size": 8, "optimizer": {"type": ")",
                                         optimizer, R"("}, "scheduler": {"type": )", scheduler, "}}}"),
                                  "run.json"));
  };
  const std::string gpt = R"({"type": "gpt", "vocab_size": 300})";
  const std::string text = R"({"type": "text", "train": "a"})";
  add(R"({"type": "cnn"})", R"({"type": "images", "train": "a", "train_labels": "b"})", "SGD", R"("WarmupLR")");
  add(R"({"type": "bert"})", text, "Adam", R"("WarmupLR")");
  add(R"({"type": "bert", "head": "classes"})", R"({"type": "labelled_text", "train": "a"})", "Adam", R"("WarmupLR")");
  add(R"({"type": "alexnet"})", R"({"type": "images", "train": "a", "train_labels": "b"})", "SGD", R"("WarmupLR")");
  add(gpt, R"({"type": "tokens", "train": "a"})", "Adam", R"("LRRangeTest")");
  add(gpt, R"({"type": "jsonl", "train": "a"})", "Adam", R"("WarmupLR")");
  for (const char* type : {"text", "tokens", "jsonl"}) {
    add(gpt, concat(R"({"type": "mixture", "sets": {"weight": 1, "data": {"train": "a", "type": ")", type, R"("}}})"),
        "Adam", R"("WarmupLR")");
  }
  add(R"({"type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 2}})", text, "Adam", R"("WarmupLR")");
  for (const char* optimizer : {"Lamb", "Lion", "Adagrad", "RMSprop", "OneBitAdam", "OneBitLamb", "ZeroOneAdam"}) {
    add(gpt, text, optimizer, R"("WarmupLR")");
  }
  add(gpt, text, "Adam", R"("WarmupDecayLR", "params": {"total_num_steps": 5000})");
  add(gpt, text, "Adam", R"("WarmupCosineLR", "params": {"total_num_steps": 5000})");
  add(gpt, text, "Adam", R"("OneCycle", "params": {"cycle_min_lr": 1, "cycle_max_lr": 2})");
  return out;
}

bool reader_knows(const std::string& path) {
  for (JsonNode root : all_forms()) {
    root.set(path, "[]");
    try {
      read_run(root, "/");
      return true;
    } catch (const InputError& error) {
      if (std::string(error.what()).find("unknown key") == std::string::npos) {
        return true;
      }
    }
  }
  return false;
}

TEST_F(ReferenceTest, TheReaderKnowsExactlyTheKeysOfTheSchema) {
  for (const JsonNode& root : all_forms()) {
    EXPECT_NO_THROW(read_run(root, "/"));
  }
  std::set<std::string> keys;
  collect(ordered_json::parse(read_file(kSchema)), "", keys);
  std::set<std::string> sections = {""};
  for (const std::string& key : keys) {
    const size_t dot = key.rfind('.');
    if (dot != std::string::npos && !key.ends_with(".enabled") &&
        !key.ends_with(".deepcompile")) { // what a switch holds is not looked at
      sections.insert(key.substr(0, dot + 1));
    }
    EXPECT_TRUE(reader_knows(key)) << key;
  }
  EXPECT_GT(sections.size(), 25u);
  for (const std::string& section : sections) {
    EXPECT_FALSE(reader_knows(section + "no_such_key")) << section;
  }
}

} // namespace
} // namespace trireme::config
