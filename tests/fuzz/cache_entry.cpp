// KEY.json of a cache of tokens, also with the checksum that it should have.
#include "fuzz.h"

#include <trireme/base/json.h>
#include <trireme/data/token_cache/cache_entry.h>

#include <xxhash.h>
#include <nlohmann/json.hpp>

#include <string>

using namespace trireme;
using namespace trireme::fuzz;

namespace {

void read(const std::string& text) {
  allow_input_error([&] {
    const auto entry = data::CacheEntry::parse(text, "entry.json");
    require(entry.folder.find('/') == std::string::npos && entry.folder != "..", "the shards lie beside the entry");
    for (const auto& [name, split] : entry.splits) {
      require(name.find('/') == std::string::npos && split.tokens() > 0, "splits are folders with tokens");
    }
    require_no_error("an entry can be written and read again", [&] {
      const std::string again = entry.to_text();
      require(data::CacheEntry::parse(again, "again").to_text() == again, "written and read again it is the same");
    });
  });
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(text_of(data, size));
  read(text);
  allow_input_error([&] {
    nlohmann::ordered_json entry = JsonNode::parse(text, "entry.json").plain();
    if (entry.is_object()) {
      entry.erase("checksum");
      const std::string rest = entry.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
      entry["checksum"] = data::hex_of(XXH3_64bits(rest.data(), rest.size()));
      read(entry.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace));
    }
  });
  return 0;
}
