#include <trireme/models/lone_block.h>

#include <trireme/models/gpt.h>
#include <trireme/models/llama.h>
#include <trireme/models/rotary.h>

namespace trireme::models {
namespace {

// Keeps the part of a block that one of `tensor` ranks has.
void keep_share(GptBlock& block, int64_t tensor) {
  const auto keep = [&](at::Tensor& parameter, int64_t dim) {
    parameter.set_data(parameter.narrow(dim, 0, parameter.size(dim) / tensor).contiguous());
  };
  block->attn->heads /= tensor;
  for (auto* layer : {&block->attn->c_attn, &block->mlp->c_fc}) {
    keep((*layer)->weight, 0);
    keep((*layer)->bias, 0);
  }
  keep(block->attn->c_proj->weight, 1);
  keep(block->mlp->c_proj->weight, 1);
}

LoneBlock gpt_block(const TransformerShape& shape, int64_t tensor) {
  GptOptions options;
  options.layers = 1;
  options.hidden = shape.hidden;
  options.heads = shape.heads;
  options.sequence_length = shape.sequence_length;
  options.dropout = shape.dropout;
  GptBlock block(options);
  keep_share(block, tensor);
  return {block.ptr(), [block](const at::Tensor& x) mutable { return block->forward(x); }};
}

// A rank's share is a block with fewer heads and a narrower MLP.
LoneBlock llama_block(const TransformerShape& shape, int64_t tensor) {
  LlamaOptions options;
  options.layers = 1;
  options.hidden = shape.hidden;
  options.heads = shape.heads / tensor;
  options.kv_heads = (shape.kv_heads == 0 ? shape.heads : shape.kv_heads) / tensor;
  options.head_dim = shape.width_of_head();
  options.intermediate = shape.width_of_mlp() / tensor;
  options.sequence_length = shape.sequence_length;
  options.attention_bias = shape.attention_bias;
  options.attention_output_bias = shape.attention_output_bias;
  options.mlp_bias = shape.mlp_bias;
  options.qk_norm = shape.qk_norm;
  LlamaBlock block(options, ModelRanks(), 0, std::make_shared<const RotaryPositions>(options, ModelRanks()));
  return {block.ptr(), [block](const at::Tensor& x) mutable { return block->forward(x); }};
}

} // namespace

LoneBlock lone_block(const TransformerShape& shape, int64_t tensor) {
  return shape.family == TransformerShape::Family::llama ? llama_block(shape, tensor) : gpt_block(shape, tensor);
}

} // namespace trireme::models
