#include "inspect_tokens.h"

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/data/token_files/shard_format.h>
#include <trireme/data/token_files/shard_index.h>
#include <trireme/data/token_files/token_files.h>

#include <nlohmann/json.hpp>

#include <iostream>
#include <optional>

namespace trireme::tools {
namespace {

using nlohmann::ordered_json;
using Kind = data::TokenFile::Kind;

ordered_json describe_token_file(const data::TokenFile& file) {
  ordered_json row = {{"file", file.path.filename().string()},
                      {"kind", file.kind == Kind::megatron ? "megatron" : "shard"},
                      {"tokens", file.num_tokens},
                      {"documents", file.num_documents},
                      {"token_bytes", file.token_bytes},
                      {"bytes", file.map->bytes().size()}};
  if (file.kind == Kind::shard) {
    row["vocab_size"] = file.vocab_size;
    row["counted_tokens"] = file.counted_tokens.value_or(file.num_tokens);
    row["damaged"] = !data::has_right_checksum(file.map->bytes(), file.checksum);
  }
  return row;
}

std::string count_documents(int64_t count) {
  return concat(count, count == 1 ? " document" : " documents");
}

void print_index(const data::ShardIndex& index) {
  std::cout << "token shards made with " << printable(index.tokenizer) << " (" << index.vocab_size << " tokens), "
            << (index.end_token
                    ? concat("behind each document: ", printable(index.end_token->text), " (", index.end_token->id, ')')
                    : "nothing between documents")
            << '\n'
            << format_count(index.tokens) << " tokens"
            << (index.counted_tokens
                    ? concat(" (", data::percent_of(*index.counted_tokens, index.tokens), " count in the loss)")
                    : "")
            << ", " << count_documents(index.documents) << ", " << format_bytes(index.text_bytes) << " of text from "
            << index.inputs.size() << (index.inputs.size() == 1 ? " file\n" : " files\n");
}

std::string share_of_counted(const ordered_json& file) {
  const auto tokens = file["tokens"].get<int64_t>();
  const int64_t counted = file.value("counted_tokens", tokens);
  return counted == tokens ? "" : concat(", ", data::percent_of(counted, tokens), " count in the loss");
}

void print_token_files(const ordered_json& files) {
  for (const ordered_json& file : files) {
    std::cout << "  " << printable(file["file"].get<std::string>()) << "  " << file["tokens"] << " tokens of "
              << 8 * file["token_bytes"].get<int64_t>() << " bits, "
              << count_documents(file["documents"].get<int64_t>()) << share_of_counted(file) << ", "
              << format_bytes(file["bytes"].get<int64_t>())
              << (file.value("damaged", false) ? "  DAMAGED: wrong checksum" : "") << '\n';
  }
}

} // namespace

int inspect_tokens(const InspectCommand& command) {
  ordered_json found = {{"path", command.path.string()}};
  const bool is_folder = data::is_shard_folder(command.path);
  std::optional<data::ShardIndex> index;
  if (is_folder) {
    index = data::ShardIndex::read(command.path);
    found.update(ordered_json::parse(index->to_text()));
    found.erase("shards");
  }
  bool damaged = false;
  found["files"] = ordered_json::array();
  for (const data::TokenFile& file : data::open_token_files({command.path}, 0)) {
    found["files"].push_back(describe_token_file(file));
    damaged |= found["files"].back().value("damaged", false);
  }
  if (command.json) {
    std::cout << found.dump(-1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace) << '\n';
  } else {
    if (index) {
      print_index(*index);
    }
    print_token_files(found["files"]);
  }
  return damaged ? 1 : 0;
}

} // namespace trireme::tools
