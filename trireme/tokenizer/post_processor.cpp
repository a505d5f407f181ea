#include <trireme/tokenizer/post_processor.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/model.h>
#include <trireme/tokenizer/part_json.h>

#include <map>
#include <string>

namespace trireme::tokenizer {
namespace {

int32_t read_id(const JsonNode& node) {
  const int64_t id = node.as_integer();
  if (id < 0 || id >= kMostTokens) {
    fail_at(node.where(), concat("the id ", id, " is not in 0 to ", kMostTokens - 1));
  }
  return static_cast<int32_t>(id);
}

// ["[CLS]", 101]
int32_t read_token(const JsonNode& node) {
  if (node.elements().size() != 2) {
    fail_at(node.where(), "expected [\"token\", id]");
  }
  static_cast<void>(node.elements()[0].as_string());
  return read_id(node.elements()[1]);
}

// {"[CLS]": {"id": "[CLS]", "ids": [101], "tokens": ["[CLS]"]}}
std::map<std::string, std::vector<int32_t>> read_special_tokens(const JsonNode& node) {
  std::map<std::string, std::vector<int32_t>> all;
  for (const auto& [name, token] : node.members()) {
    ObjectReader reader(token);
    for (const JsonNode& id : reader.require("ids").elements()) {
      all[name].push_back(read_id(id));
    }
    all[name]; // a name without ids stands for nothing
  }
  return all;
}

// "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
PostProcessor read_template(ObjectReader& reader) {
  const auto special = read_special_tokens(reader.require("special_tokens"));
  reader.find("pair");
  const JsonNode& single = reader.require("single");
  PostProcessor made;
  int texts = 0;
  for (const JsonNode& piece : single.elements()) {
    ObjectReader choice(piece);
    if (const JsonNode* const sequence = choice.find("Sequence")) {
      const std::string id = ObjectReader(*sequence).require_as<std::string>("id");
      if (id != "A") {
        fail_at(sequence->where(), concat("the template for single texts has the text \"", printable(id), '"'),
                "It has one text, \"A\".");
      }
      ++texts;
      continue;
    }
    const JsonNode& token = choice.require("SpecialToken");
    const std::string name = ObjectReader(token).require_as<std::string>("id");
    const auto found = special.find(name);
    if (found == special.end()) {
      fail_at(token.where(), concat("\"special_tokens\" has no \"", printable(name), '"'));
    }
    std::vector<int32_t>& side = texts == 0 ? made.before : made.after;
    side.insert(side.end(), found->second.begin(), found->second.end());
  }
  if (texts != 1) {
    fail_at(single.where(), concat("the template for single texts has the text ", texts, " times"),
            "Write it once: {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}.");
  }
  return made;
}

} // namespace

PostProcessor read_post_processor(const JsonNode& node) {
  PostProcessor all;
  for_each_part(node, "processors", [&](const std::string& type, ObjectReader& reader) {
    PostProcessor one;
    if (type == "TemplateProcessing") {
      one = read_template(reader);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      one = {{read_token(reader.require("cls"))}, {read_token(reader.require("sep"))}};
    } else if (type != "ByteLevel") {
      refuse_type(reader.node(), "post-processor", type,
                  "Supported: Sequence, BertProcessing, ByteLevel, RobertaProcessing, TemplateProcessing.");
    }
    for (const char* of_offsets : {"trim_offsets", "add_prefix_space", "use_regex"}) {
      reader.find(of_offsets);
    }
    all.before.insert(all.before.begin(), one.before.begin(), one.before.end());
    all.after.insert(all.after.end(), one.after.begin(), one.after.end());
  });
  return all;
}

} // namespace trireme::tokenizer
