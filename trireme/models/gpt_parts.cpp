#include <trireme/models/options.h>

#include <trireme/base/error.h>

namespace trireme::models {

std::vector<GptPart> gpt_parts(const GptOptions& options) {
  using Kind = GptPart::Kind;
  const int64_t h = options.hidden;
  const GptPart tokens{Kind::tokens, "transformer.wte", {{"weight", {options.vocab_size, h}}}};
  std::vector<GptPart> parts = {tokens,
                                {Kind::positions, "transformer.wpe", {{"weight", {options.sequence_length, h}}}}};
  for (int64_t i = 0; i < options.layers; ++i) {
    parts.push_back({Kind::block,
                     concat("transformer.h.", i),
                     {{"ln_1.weight", {h}},
                      {"ln_1.bias", {h}},
                      {"attn.c_attn.weight", {3 * h, h}},
                      {"attn.c_attn.bias", {3 * h}},
                      {"attn.c_proj.weight", {h, h}},
                      {"attn.c_proj.bias", {h}},
                      {"ln_2.weight", {h}},
                      {"ln_2.bias", {h}},
                      {"mlp.c_fc.weight", {4 * h, h}},
                      {"mlp.c_fc.bias", {4 * h}},
                      {"mlp.c_proj.weight", {h, 4 * h}},
                      {"mlp.c_proj.bias", {h}}}});
  }
  parts.push_back({Kind::norm, "transformer.ln_f", {{"weight", {h}}, {"bias", {h}}}});
  parts.push_back({Kind::head, options.tie_embeddings ? tokens.name : "lm_head", tokens.parameters});
  return parts;
}

} // namespace trireme::models
