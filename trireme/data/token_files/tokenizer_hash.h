#pragma once

#include <cstdint>
#include <string>

namespace trireme::data {

/// XXH3-64 of the files that decide the ids of make_tokenizer(`spec`), whose names do not count; for none that of
/// "bytes". Cost: one read of them. Errors: as deciding_files().
uint64_t tokenizer_hash(const std::string& spec);

} // namespace trireme::data
