#pragma once

#include <trireme/tokenizer/tokenizer_files.h>

#include <cstdint>
#include <vector>

namespace trireme::data {

/// XXH3-64 of the files that decide a tokenizer's ids, whose names do not count; for none that of "bytes". Cost: one
/// read of them.
uint64_t tokenizer_hash(const std::vector<tokenizer::TokenizerFile>& files);

} // namespace trireme::data
