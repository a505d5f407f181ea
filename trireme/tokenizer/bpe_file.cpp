#include <trireme/tokenizer/bpe.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/plain_text.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/part_json.h>

#include <vector>

namespace trireme::tokenizer {
namespace {

// "#version: 0.2": first line of the lists that Hugging Face and OpenAI write.
bool is_version_line(std::string_view line) {
  return line.starts_with("#version");
}

Merge merge_of(std::string_view left, std::string_view right, std::string_view prefix, const Vocabulary& vocabulary,
               const std::string& where) {
  constexpr const char* kMerge = "the merge";
  // What follows in a word has a prefix, which what it is merged with does not repeat.
  if (right.size() < prefix.size()) {
    fail_at(where, concat("the second token of the merge, \"", printable(right),
                          "\", is shorter than continuing_subword_prefix"));
  }
  return {vocabulary.need(left, kMerge, where), vocabulary.need(right, kMerge, where),
          vocabulary.need(concat(left, right.substr(prefix.size())), kMerge, where)};
}

// "a b"; tokens have no space.
Merge merge_of_line(const std::string& line, std::string_view prefix, const Vocabulary& vocabulary,
                    const std::string& where) {
  const size_t space = line.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string::npos) {
    fail_at(where,
            concat("a merge is two tokens with one space between, found \"", printable(line.substr(0, 80)), '"'));
  }
  return merge_of(std::string_view(line).substr(0, space), std::string_view(line).substr(space + 1), prefix, vocabulary,
                  where);
}

} // namespace

std::unique_ptr<Model> read_bpe(ObjectReader& reader) {
  const std::string& where = reader.node().where();
  if (const JsonNode* const dropout = reader.find("dropout");
      dropout != nullptr && !dropout->is_null() && dropout->as_real() != 0) {
    fail_at(dropout->where(), concat("dropout ", dropout->plain().dump(), " is not supported: the ids would be random"),
            "Set it to null.");
  }
  BpeOptions options;
  options.fuse_unk = reader.get("fuse_unk", false);
  options.byte_fallback = reader.get("byte_fallback", false);
  options.ignore_merges = reader.get("ignore_merges", false);
  options.continuing_subword_prefix = reader.get<std::string>("continuing_subword_prefix", "");
  options.end_of_word_suffix = reader.get<std::string>("end_of_word_suffix", "");
  Vocabulary vocabulary = read_vocabulary(reader.require("vocab"));
  if (const auto unknown = reader.maybe<std::string>("unk_token")) {
    options.unk_id = vocabulary.id_of(*unknown).value_or(-1);
  }
  std::vector<Merge> merges;
  const std::string& prefix = options.continuing_subword_prefix;
  for (const JsonNode& merge : reader.require("merges").elements()) {
    if (merge.kind() == JsonNode::Kind::string) {
      if (!is_version_line(merge.as_string())) {
        merges.push_back(merge_of_line(merge.as_string(), prefix, vocabulary, merge.where()));
      }
      continue;
    }
    if (merge.elements().size() != 2) {
      fail_at(merge.where(), concat("a merge is two tokens, found ", merge.elements().size()));
    }
    merges.push_back(
        merge_of(merge.elements()[0].as_string(), merge.elements()[1].as_string(), prefix, vocabulary, merge.where()));
  }
  reader.finish();
  return std::make_unique<Bpe>(std::move(vocabulary), merges, std::move(options), source_of(where));
}

std::vector<Merge> read_merges(const std::filesystem::path& file, const Vocabulary& vocabulary) {
  std::vector<std::string> lines = split(plain_text("data", file.string(), read_file(file)), '\n');
  while (!lines.empty() && (lines.back().empty() || lines.back() == "\r")) {
    lines.pop_back();
  }
  std::vector<Merge> merges;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string& line = lines[i];
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    if (!is_version_line(line)) {
      merges.push_back(merge_of_line(line, "", vocabulary, concat(file.string(), ':', i + 1)));
    }
  }
  return merges;
}

} // namespace trireme::tokenizer
