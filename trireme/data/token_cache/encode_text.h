#pragma once

#include <trireme/data/text_bytes.h>
#include <trireme/data/tokenize/part_joiner.h>
#include <trireme/tokenizer/tokenizer.h>

#include <functional>
#include <string>

namespace trireme::data {

/// Encodes one text, which `next` gives piece by piece until it returns false, with `threads` threads beside one that
/// reads. `emit` gets the ids, in order: those of the text in one piece. Returns the text's bytes.
///
/// Memory: about 1 MB for each block under way, of which there are twice as many as threads. Errors: those of `next`
/// and `emit`; InputError if more than 32 MB of text can only be encoded in one piece.
TextBytes encode_text(const std::function<bool(std::string& piece)>& next, const tokenizer::Tokenizer& tokenizer,
                      int threads, const PartJoiner::Emit& emit);

} // namespace trireme::data
