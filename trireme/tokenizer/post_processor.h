#pragma once

#include <trireme/base/json.h>

#include <cstdint>
#include <vector>

namespace trireme::tokenizer {

/// The special tokens around the ids of a text.
struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

/// Reads "post_processor" of a tokenizer.json, as far as it concerns single texts: Sequence, BertProcessing, ByteLevel,
/// RobertaProcessing, TemplateProcessing. Errors: InputError naming any other, or a template that does not have the
/// text exactly once.
PostProcessor read_post_processor(const JsonNode& node);

} // namespace trireme::tokenizer
