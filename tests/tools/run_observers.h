#pragma once

#include <tests/support/key_observers.h>

#include <nlohmann/json.hpp>

#include <vector>

namespace trireme::tools {

/// What a training in this process does and leaves; `run` is a run file.
namespace observe {

using nlohmann::json;

/// A tokenizer of six tokens.
inline constexpr const char* kTinyTokenizer = R"({"version": "1.0", "added_tokens": [], "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "abab": 5}, "merges": ["a b", "Ġ ab", "ab ab"]}})";

/// The metrics of every step, and the checkpoints: names, and of the newest each tensor and which rank holds it.
json training(comm::World& world, const json& run);
/// What the trained model writes.
json sample(comm::World& world, const json& run);

/// "read" or "refused".
json whether_it_is_read(comm::World& world, const json& run);

/// JSON lines whose label is whether the text has an "a".
std::string labelled_file(const std::string& name, int stride);
/// A bert with the head classes on such texts.
json classifier();

/// Observers of the keys of "model".
std::vector<test::KeyObserver> model_keys();
/// Those of all keys but the ones of "engine".
std::vector<test::KeyObserver> all_observers();

} // namespace observe
} // namespace trireme::tools
