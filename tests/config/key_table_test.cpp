// Walks the whole key table: what it says of each key is what the reader does with it.

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/config/deepspeed_json.h>
#include <trireme/config/key_table.h>
#include <trireme/config/run_file.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>

namespace trireme::config {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;

bool is_honoured(const Section& section, std::string_view key) {
  return std::any_of(section.keys.begin(), section.keys.end(),
                     [&](const Key& one) { return one.name == key && one.verdict == Verdict::honoured; });
}

// A run file in which the section of this path and type has a place.
json base_for(const Section& section, std::string_view key = "") {
  json run =
      json::parse(R"({"model": {"type": "gpt"}, "data": {"type": "text", "train": "t.txt"}, "training": {"steps": 10},
                             "engine": {"train_batch_size": 8, "optimizer": {"type": "Adam"}}})");
  const std::string type = split(section.when, ' ').front();
  const json images = json::parse(R"({"type": "images", "train": "i", "train_labels": "l"})");
  if (section.path == "model" && (type == "cnn" || type == "alexnet")) {
    run["model"] = {{"type", type}};
    run["data"] = images;
  } else if (section.path == "data" && type == "labelled_text") {
    run["model"] = {{"type", "bert"}, {"head", "classes"}};
    run["data"] = {{"type", type}, {"train", "t.jsonl"}};
  } else if (section.path == "model" && type == "bert") {
    run["model"] = {{"type", "bert"}};
    if (key == "classes") {
      run["model"]["head"] = "classes";
      run["data"] = {{"type", "labelled_text"}, {"train", "t.jsonl"}};
    }
  } else if (section.path == "data" && type == "images") {
    run["model"] = {{"type", "cnn"}};
    run["data"] = images;
  } else if (section.path.starts_with("data.sets") || (section.path == "data" && type == "mixture")) {
    const json set = {{"type", type == "tokens" || type == "jsonl" ? type : "text"}, {"train", "t"}};
    run["data"] = {{"type", "mixture"}, {"sets", {{"data", set}, {"weight", 1}}}};
    run["model"]["vocab_size"] = 300;
  } else if (section.path == "data" && (type == "tokens" || type == "jsonl")) {
    run["data"]["type"] = type;
    run["model"]["vocab_size"] = 300;
  } else if (section.path == "training") {
    run["data"]["validation"] = "v.txt";
  } else if (section.path == "engine.zero_optimization") {
    run["engine"]["zero_optimization"]["stage"] = 1;
  } else if (section.path.starts_with("engine.zero_optimization.offload_") &&
             (key == "device" || is_honoured(section, key))) {
    run["engine"]["zero_optimization"]["stage"] = 3;
    const json files = {{"device", "nvme"}, {"nvme_path", "/n"}};
    run["engine"]["zero_optimization"][std::string(section.path.substr(section.path.rfind('.') + 1))] =
        key == "nvme_path" ? json{{"device", "cpu"}} : files;
  } else if (section.path == "engine.parameter_averaging") {
    run["engine"]["parameter_averaging"] = {{"every", 2}, {"outer_optimizer", "nesterov"}};
    run["training"]["steps"] = 8;
  } else if (section.path == "parallel.sync" && (key == "every" || key == "outer" || key == "elastic")) {
    run["parallel"]["sync"] = {{"kind", "local_sgd"}};
    run["training"]["steps"] = 51200; // whatever is tried divides it
  } else if (section.path == "parallel.sync" && key != "kind") {
    run["parallel"]["sync"] = {{"kind", "server"},
                               {"mode", key == "staleness"   ? "stale"
                                        : key == "timeout_s" ? "hybrid"
                                                             : "sync"}};
  } else if (section.path.starts_with("model") && (type == "llama" || section.path == "model.rope_scaling")) {
    run["model"] = {{"type", "llama"}, {"heads", 8}, {"kv_heads", 4}};
    if (section.path == "model.rope_scaling" && key != "type") {
      run["model"]["rope_scaling"] = {
          {"rope_type", key == "low_freq_factor" || key == "high_freq_factor" ? "llama3" : "yarn"}, {"factor", 2}};
    } else if (section.path == "model.rope_scaling") {
      run["model"]["rope_scaling"] = {{"type", "yarn"}, {"factor", 2}};
    }
  } else if (key == "step_in_backward") { // not with clipping, which is the default
    run["engine"]["gradient_clipping"] = 0;
  } else if (section.path == "engine.fp8") {
    run["engine"]["bf16"]["enabled"] = true;
  } else if (section.path == "engine.gradient_compression") {
    run["engine"]["gradient_compression"]["kind"] = key == "ratio" ? "top_k" : "power_sgd";
  } else if (section.path == "engine.activation_checkpointing" && key == "memory_budget") {
    run["engine"]["activation_checkpointing"] = {{"policy", "auto"}, {"memory_budget", "1GB"}};
  } else if (section.path.starts_with("engine.tensor_parallel")) {
    run["engine"]["tensor_parallel"]["partition_config"]["layer_specs"] = {{"patterns", "a"}};
  } else if (section.path == "engine.optimizer.params") {
    run["engine"]["optimizer"]["type"] = type;
    if (type == "SGD") {
      run["engine"]["optimizer"]["params"] = {{"momentum", 0.9}};
    }
  } else if (section.path == "engine.scheduler" || section.path == "engine.scheduler.params") {
    run["engine"]["scheduler"] = {{"type", type.empty() ? "WarmupLR" : type}};
    json& params = run["engine"]["scheduler"]["params"] = json::object();
    if (type == "OneCycle") {
      params = {{"cycle_min_lr", 1}, {"cycle_max_lr", 5}};
    } else if (type == "WarmupDecayLR" || type == "WarmupCosineLR") {
      params = {{"total_num_steps", 2000}};
    }
  }
  return run;
}

json& at(json& run, const Section& section) {
  json* object = &run;
  if (!section.path.empty()) {
    for (const std::string& part : split(section.path, '.')) {
      object = &(*object)[part];
    }
  }
  if (object->is_null()) {
    *object = json::object();
  }
  return *object;
}

RunConfig read(const json& run) {
  return read_run(JsonNode::parse(run.dump(1), "run.json"), "/no/such/folder");
}

// Everything that was understood.
json meaning(const RunConfig& run) {
  json out = run.resolved;
  out["engine"] = to_json(run.engine);
  return out;
}

std::string error_of(const json& run) {
  try {
    read(run);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// A valid value that asks for something: not `current`, and none of the values without effect.
json another_value(const Section& section, const Key& key, const json& current) {
  const ValueType type = ValueType::parse(key.type);
  using Kind = ValueType::Kind;
  const auto no_ops = no_op_values(key);
  const double number = current.is_number() ? current.get<double>() : type.least.value_or(1) * 256;
  switch (type.kind) {
    case Kind::boolean:
      return current.is_boolean() ? !current.get<bool>() : true;
    case Kind::text:
    case Kind::texts:
    case Kind::path:
    case Kind::paths:
      return key.name == "partition" ? "uniform"
             : key.name == "device"  ? "cpu"
             : key.name == "choices" ? "recompute"
             : key.name == "targets" ? "c_fc"
                                     : "other";
    case Kind::bytes:
      return "2GB";
    case Kind::reals:
      return key.name == "shape" ? json{3, -1} : json{0.5, 0.25};
    case Kind::integer:
      if (key.name == "partition_dim") { // 1 is an error with the type of the base
        return 0;
      }
      if (key.name == "resize") { // 63 at least
        return 64;
      }
      if (key.name == "token_bytes") { // 2 or 4
        return 4;
      }
      if (key.name == "mics_shard_size") { // ranks that hold a copy together: 2 at least
        return 2;
      }
      if (type.most) {
        return number + 1 <= *type.most ? number + 1 : number - 1;
      }
      if (type.or_auto) {
        return 2;
      }
      for (int64_t value = number > 1e15 ? 1000 : number < 1 ? 1 : static_cast<int64_t>(number) * 2;; ++value) {
        if (std::find(no_ops.begin(), no_ops.end(), json(value)) == no_ops.end()) {
          return value;
        }
      }
    case Kind::real:
      return type.most ? (number == 0.5 ? 0.25 : 0.5) : number + 0.5;
    case Kind::word:
      for (const std::string& word : type.words) {
        if (json(word) != current && std::find(no_ops.begin(), no_ops.end(), json(word)) == no_ops.end()) {
          return word;
        }
      }
      break;
    case Kind::choice: {
      std::string last;
      for (const Key& choice : find_section(concat(section.path, '.', key.name), "")->keys) {
        last = choice.verdict == Verdict::honoured ? std::string(choice.name) : last;
      }
      return last;
    }
    case Kind::switch_:
      return {{"enabled", true}};
    case Kind::object:
    case Kind::objects:
    case Kind::object_or_path:
      return {{"anything", 1}};
  }
  return nullptr;
}

bool is_object_with_section(const Section& section, const Key& key) {
  const std::string path = section.path.empty() ? std::string(key.name) : concat(section.path, '.', key.name);
  const ValueType::Kind kind = ValueType::parse(key.type).kind;
  return (kind == ValueType::Kind::object || kind == ValueType::Kind::objects ||
          kind == ValueType::Kind::object_or_path) &&
         find_section(path, "") != nullptr;
}

// Visits every key that has a value of its own, with a base it can be set in.
template <typename Visit>
int for_each_key(Visit visit) {
  int count = 0;
  for (const Section& section : all_sections()) {
    for (const Key& key : section.keys) {
      // An own "type" selects the section; data.sequence_length may have one value only, a bert's head too with its
      // data; images and labels for the validation come together (run_file_test.cpp, model_types_test.cpp have these).
      // A folder is read at once (huggingface_model_test.cpp, lora_test.cpp).
      const bool selects = (key.name == "type" && !section.when.empty()) || key.name == "from" || key.name == "adapter";
      const bool fixed =
          (section.path == "data" &&
           (key.name == "sequence_length" || (section.when == "images" && key.name.starts_with("validation")))) ||
          (section.when == "bert" && key.name == "head");
      if (!key.type.empty() && !selects && !fixed && !is_object_with_section(section, key)) {
        SCOPED_TRACE(concat(section.path, " (", section.when, ") ", key.name));
        visit(section, key, base_for(section, key.name));
        ++count;
      }
    }
  }
  return count;
}

TEST(KeyTableTest, IsWellFormed) {
  std::set<std::string> seen;
  for (const Section& section : all_sections()) {
    EXPECT_FALSE(section.keys.empty()) << section.path;
    for (const Key& key : section.keys) {
      SCOPED_TRACE(concat(section.path, '.', key.name));
      EXPECT_TRUE(seen.insert(concat(section.path, '|', section.when, '|', key.name)).second) << "twice";
      EXPECT_FALSE(key.text.empty());
      EXPECT_EQ(key.text.back(), '.');
      if (!key.type.empty()) {
        EXPECT_NO_THROW(ValueType::parse(key.type));
        EXPECT_NO_THROW(no_op_values(key));
      }
    }
  }
}

Verdict verdict_of_section(std::string_view path) {
  const Section* first = nullptr;
  for (const Section& section : all_sections()) {
    if (section.path != path) {
      continue;
    }
    first = first == nullptr ? &section : first;
    if (std::any_of(section.keys.begin(), section.keys.end(),
                    [](const Key& key) { return key.verdict == Verdict::honoured; })) {
      return Verdict::honoured;
    }
  }
  if (first == nullptr) {
    throw std::logic_error(concat("key table: no section ", path));
  }
  return first->keys.front().verdict;
}

TEST(KeyTableTest, ASectionIsWhatItsKeysAre) {
  int sections = 0;
  for (const Section& section : all_sections()) {
    for (const Key& key : section.keys) {
      if (!key.type.empty() && is_object_with_section(section, key)) {
        const std::string path = section.path.empty() ? std::string(key.name) : concat(section.path, '.', key.name);
        EXPECT_EQ(verdict_name(key.verdict), verdict_name(verdict_of_section(path))) << path;
        ++sections;
      }
    }
  }
  EXPECT_GT(sections, 25);
}

TEST(KeyTableTest, DefaultsAndNoOpValuesAreAcceptedSilently) {
  for_each_key([](const Section& section, const Key& key, json run) {
    json& object = at(run, section);
    const auto no_ops = no_op_values(key);
    if (!no_ops.empty()) {
      object.erase(std::string(key.name));
    }
    const json before = meaning(read(run));
    for (const json& value : no_ops) {
      object[std::string(key.name)] = value;
      const RunConfig now = read(run);
      EXPECT_THAT(now.notes, IsEmpty());
      EXPECT_EQ(meaning(now), before) << value;
    }
  });
}

// A run file has no model of a program's own that could be split (run_file_test.cpp): there the engine's part is read
// alone.
json meaning_of(const Section& section, const json& run) {
  if (section.path.starts_with("engine.tensor_parallel")) {
    return to_json(read_deepspeed(JsonNode::parse(run["engine"].dump(1), "engine.json")));
  }
  return meaning(read(run));
}

// What it does is watched in tests/engine/key_behaviour_test.cpp and tests/tools/run_behaviour_test.cpp.
TEST(KeyTableTest, EveryHonouredKeyIsUnderstood) {
  int honoured = 0;
  for_each_key([&](const Section& section, const Key& key, json run) {
    if (key.verdict != Verdict::honoured) {
      return;
    }
    ++honoured;
    json& object = at(run, section); // its mere presence is not the effect
    const json before = meaning_of(section, run);
    const std::string name(key.name);
    const json current = object.contains(name) ? object[name]
                         : key.default_value == "required" || key.default_value.empty()
                             ? json()
                             : json::parse(key.default_value);
    object[name] = another_value(section, key, current);
    try {
      EXPECT_NE(meaning_of(section, run), before) << object;
    } catch (const InputError& error) {
      ADD_FAILURE() << error.what();
    }
  });
  EXPECT_GT(honoured, 90);
}

TEST(KeyTableTest, EveryOtherKeyIsNotedOrRefusedByName) {
  int others = 0;
  for_each_key([&](const Section& section, const Key& key, json run) {
    const bool behind_the_gate = section.gated && &key != &section.keys.front();
    if (key.verdict == Verdict::honoured) {
      return;
    }
    ++others;
    const std::string name(key.name);
    const json current =
        key.default_value == "required" || key.default_value.empty() ? json() : json::parse(key.default_value);
    at(run, section)[name] = another_value(section, key, current);
    const std::string error = error_of(run);
    if (behind_the_gate) {
      EXPECT_EQ(error, "") << "a section that is off asks for nothing";
      return;
    }
    const std::string path = concat(section.path, '.', name);
    if (key.verdict == Verdict::no_effect) {
      ASSERT_EQ(error, "");
      EXPECT_THAT(read(run).notes, testing::Contains(HasSubstr(concat(path, " has no effect: ", key.text))));
    } else {
      EXPECT_THAT(error, HasSubstr(concat(
                             path, ": ", key.verdict == Verdict::not_yet ? "not yet: " : "not supported: ", key.text)));
      EXPECT_THAT(error, HasSubstr("run.json:"));
    }
  });
  EXPECT_GT(others, 150);
}

TEST(KeyTableTest, EveryNameOfAChoiceDoesWhatItsLineSays) {
  for (const Section& section : all_sections()) {
    for (const Key& key : section.keys) {
      if (!key.type.empty()) {
        continue;
      }
      SCOPED_TRACE(concat(section.path, ' ', key.name));
      const std::string parent(section.path.substr(0, section.path.rfind('.')));
      json run = base_for({parent, key.name, "", false, {}});
      Section place = {parent, "", "", false, {}};
      json& object = at(run, place);
      for (const std::string& name : {std::string(key.name), lower(key.name)}) {
        object[std::string(section.path.substr(parent.size() + 1))] = name;
        const std::string error = error_of(run);
        if (key.verdict == Verdict::honoured) {
          EXPECT_EQ(error, "");
        } else {
          EXPECT_THAT(error,
                      HasSubstr(concat(section.path, ": ",
                                       key.verdict == Verdict::not_yet ? "not yet: " : "not supported: ", key.name)));
        }
      }
    }
  }
}

TEST(KeyTableTest, NullCountsAsAbsent) {
  for_each_key([](const Section& section, const Key& key, json run) {
    if (key.default_value == "required") {
      return;
    }
    json& object = at(run, section);
    object.erase(std::string(key.name));
    // Without its only batch size, or without momentum under nesterov, a file may be refused either way.
    const std::string without = error_of(run);
    object[std::string(key.name)] = nullptr;
    EXPECT_EQ(error_of(run), without);
    if (without.empty()) {
      EXPECT_THAT(read(run).notes, IsEmpty());
    }
  });
}

// Every key with a value of every kind: read, or refused by an InputError that names a place.
TEST(KeyTableTest, NoValueDoesAnythingElse) {
  const json values = json::parse(
      R"([null, true, 5, -1, 1.5, 1e300, 9223372036854775807, "", "x", "auto", [], [1], [[]], {}, {"a": 1}, {"type": 5}, {"enabled": 5}])");
  for (const Section& section : all_sections()) {
    for (const Key& key : section.keys) {
      json run = base_for(section);
      json& object = section.keys.front().type.empty()
                         ? at(run, {section.path.substr(0, section.path.rfind('.')), "", "", false, {}})
                         : at(run, section);
      const std::string name(section.keys.front().type.empty() ? "type" : key.name);
      for (const json& value : values) {
        object[name] = value;
        try {
          read(run);
        } catch (const InputError& error) {
          EXPECT_THAT(error.what(), HasSubstr("run.json:"));
        } catch (const std::exception& error) {
          ADD_FAILURE() << section.path << '.' << name << " = " << value << ": " << error.what();
        }
      }
    }
  }
}

TEST(KeyTableTest, TypesFromTheirShortForm) {
  const auto range = ValueType::parse("real 0..<1");
  EXPECT_TRUE(range.in_range(0) && range.in_range(0.5));
  EXPECT_FALSE(range.in_range(1) || range.in_range(-0.1));
  EXPECT_EQ(range.describe(), "a number from 0 to below 1");
  const auto above = ValueType::parse("real > 0");
  EXPECT_FALSE(above.in_range(0));
  EXPECT_EQ(above.describe(), "a number > 0");
  const auto automatic = ValueType::parse("int|auto >= 1");
  EXPECT_TRUE(automatic.or_auto && automatic.in_range(1));
  EXPECT_EQ(automatic.describe(), "a whole number >= 1 or \"auto\"");
  EXPECT_EQ(ValueType::parse("bool|auto").describe(), "true or false or \"auto\"");
  EXPECT_EQ(ValueType::parse("switch").words, (std::vector<std::string>{"enabled"}));
  EXPECT_EQ(ValueType::parse("switch a|b").words, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(ValueType::parse("word a|b").words, (std::vector<std::string>{"a", "b"}));
  EXPECT_THROW(ValueType::parse("number"), std::logic_error);
  EXPECT_THROW(ValueType::parse("int about 3"), std::logic_error);
}

} // namespace
} // namespace trireme::config
