#pragma once

#include <trireme/tokenizer/tokenizer.h>

namespace trireme::data {

// The tokenizers of trireme/tokenizer, under the names that data sets use.
using tokenizer::ByteTokenizer;
using tokenizer::make_tokenizer;
using tokenizer::Tokenizer;

} // namespace trireme::data
