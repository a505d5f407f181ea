#include <trireme/data/labelled_text.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/json.h>
#include <trireme/base/plain_text.h>
#include <trireme/base/text.h>
#include <trireme/data/packed.h>
#include <trireme/data/windows.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

struct Example {
  std::string text;
  std::string where;
  std::string name; // of its label, if that is no number
  int64_t label = -1;
};

[[noreturn]] void refuse(const std::string& where, const std::string& what, const std::string& next = "") {
  throw InputError("data", concat(where, ": ", what), next);
}

Example read_example(const JsonNode& line) {
  if (!line.is_object()) {
    line.fail("a line must be an object", R"(Write {"text": "...", "label": 0}.)");
  }
  const JsonNode* const text = line.find("text");
  const JsonNode* const label = line.find("label");
  if (text == nullptr || label == nullptr) {
    line.fail(concat("the key \"", text == nullptr ? "text" : "label", "\" is missing"));
  }
  Example example{text->as_string(), label->where(), "", -1};
  if (label->kind() == JsonNode::Kind::string) {
    example.name = label->as_string();
    if (example.name.empty()) {
      label->fail("the label is empty");
    }
  } else {
    example.label = label->as_integer();
  }
  return example;
}

std::vector<Example> read_examples(const std::vector<fs::path>& files) {
  std::vector<Example> examples;
  for (const fs::path& file : files) {
    const std::string content = plain_text("data", file.string(), unpack(read_file(file), file.string()));
    int64_t number = 0;
    for (const std::string& line : split(content, '\n')) {
      ++number;
      if (line.find_first_not_of(" \t\r") != std::string::npos) {
        examples.push_back(read_example(JsonNode::parse(line, concat(file.string(), " line ", number))));
      }
    }
  }
  if (examples.empty()) {
    refuse(files.empty() ? "labelled_text" : files.front().string(), "there is no text in it");
  }
  return examples;
}

// Fills in the numbers of labels that are names. Returns the names.
std::vector<std::string> number_labels(std::vector<Example>& examples, const LabelledText::Options& options) {
  std::vector<std::string> names = options.names.value_or(std::vector<std::string>());
  const bool named = options.names ? !names.empty() : !examples.front().name.empty();
  const char* const others = options.names ? ", those of the training data are " : ", that of the first text is a ";
  if (named && !options.names) {
    std::set<std::string> sorted;
    for (const Example& example : examples) {
      sorted.insert(example.name);
    }
    names.assign(sorted.begin(), sorted.end());
  }
  for (Example& example : examples) {
    if (example.name.empty() == named) {
      refuse(example.where, concat("this label is a ", named ? "number" : "name", others, named ? "name" : "number",
                                   options.names ? "s" : ""));
    }
    if (named) {
      const auto found = std::find(names.begin(), names.end(), example.name);
      if (found == names.end()) {
        refuse(example.where, concat("no text of the training data has the label \"", printable(example.name), '"'));
      }
      example.label = found - names.begin();
    }
    if (example.label < 0 || example.label >= options.classes) {
      refuse(example.where,
             named
                 ? concat('"', printable(example.name), "\" is one of ", names.size(),
                          " different labels, the model has ", options.classes, " classes")
                 : concat("label ", example.label, " is outside of ", options.classes, " classes, which count from 0"),
             "Set model.classes to the number of different labels.");
    }
  }
  return named ? names : std::vector<std::string>();
}

// The ids of the text alone, between what the tokenizer adds before and after, cut to `length` in all.
std::vector<int32_t> cut_to(const Tokenizer& tokenizer, const std::string& text, int64_t length) {
  std::vector<int32_t> ids = tokenizer.encode(text, /*add_special_tokens=*/true);
  const auto too_many = std::ssize(ids) - length;
  if (too_many <= 0) {
    return ids;
  }
  const std::vector<int32_t> alone = tokenizer.encode(text);
  const auto begin = std::search(ids.begin(), ids.end(), alone.begin(), alone.end());
  if (begin == ids.end() || std::ssize(alone) <= too_many) { // a tokenizer that adds inside: cut at the end
    ids.resize(static_cast<size_t>(length));
    return ids;
  }
  const auto end = begin + std::ssize(alone);
  ids.erase(end - too_many, end);
  return ids;
}

} // namespace

std::optional<int32_t> token_of(const Tokenizer& tokenizer, const std::string& text) {
  try {
    const std::vector<int32_t> ids = tokenizer.encode(text);
    if (ids.size() == 1 && tokenizer.decode(ids) == text) {
      return ids.front();
    }
  } catch (const InputError&) { // it lacks a byte of the text
  }
  return std::nullopt;
}

LabelledText::LabelledText(const Options& options, const Tokenizer& tokenizer, LabelledTokens texts)
    : source_(options.files.empty() ? "" : options.files.front().string()),
      sequence_length_(options.sequence_length),
      pad_(token_of(tokenizer, "[PAD]").value_or(0)),
      texts_(std::move(texts)),
      names_(options.names.value_or(std::vector<std::string>())) {}

LabelledText::LabelledText(const Options& options, const Tokenizer& tokenizer)
    : source_(options.files.empty() ? "" : options.files.front().string()),
      sequence_length_(options.sequence_length),
      pad_(token_of(tokenizer, "[PAD]").value_or(0)) {
  if (sequence_length_ < 1) {
    throw InputError("data", concat("sequence_length must be at least 1, got ", sequence_length_));
  }
  std::vector<Example> examples = read_examples(options.files);
  names_ = number_labels(examples, options);
  for (const Example& example : examples) {
    check_stop(options.stop, "tokenizing");
    const std::vector<int32_t> ids = cut_to(tokenizer, example.text, sequence_length_);
    if (ids.empty()) {
      refuse(example.where, "its text has no tokens");
    }
    texts_.tokens.insert(texts_.tokens.end(), ids.begin(), ids.end());
    texts_.ends.push_back(std::ssize(texts_.tokens));
    texts_.labels.push_back(example.label);
  }
}

Batch LabelledText::get_part(std::span<const int64_t> indices, Part part) const {
  check_indices(indices, size());
  const auto rows = std::ssize(indices);
  Batch batch;
  batch.samples = rows;
  if (part != Part::targets) {
    const at::Tensor tokens_BL = at::full({rows, sequence_length_}, static_cast<int64_t>(pad_), at::kLong);
    const at::Tensor mask_BL = at::zeros({rows, sequence_length_}, at::kBool);
    for (int64_t row = 0; row < rows; ++row) {
      const auto sample = static_cast<size_t>(indices[static_cast<size_t>(row)]);
      const int64_t begin = sample == 0 ? 0 : texts_.ends[sample - 1];
      const int64_t count = texts_.ends[sample] - begin;
      std::copy_n(texts_.tokens.begin() + begin, count, tokens_BL.mutable_data_ptr<int64_t>() + row * sequence_length_);
      std::fill_n(mask_BL.mutable_data_ptr<bool>() + row * sequence_length_, count, true);
    }
    batch.inputs = {tokens_BL, mask_BL};
  }
  if (part != Part::inputs) {
    const at::Tensor target_B = at::empty({rows}, at::kLong);
    auto* target = target_B.mutable_data_ptr<int64_t>();
    for (const int64_t index : indices) {
      *target++ = texts_.labels[static_cast<size_t>(index)];
    }
    batch.targets = {target_B};
  }
  return batch;
}

std::string LabelledText::describe() const {
  return concat("texts with labels: ", texts_.labels.size(), " of up to ", sequence_length_, " tokens (", source_, ')');
}

} // namespace trireme::data
