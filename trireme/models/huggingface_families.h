#pragma once

#include <trireme/models/huggingface_weights.h>

namespace trireme::models {

/// GPT2LMHeadModel; names with and without "transformer.". Matrices of blocks are [in, out] (Conv1D).
const HuggingFaceFamily& gpt2_family();
/// LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM; names with and without "model.".
const HuggingFaceFamily& llama_family();
/// BertForMaskedLM, BertForSequenceClassification, BertModel; names with and without "bert.". Heads that the model
/// lacks are left out; a missing classifier or pooler is random.
const HuggingFaceFamily& bert_family();

} // namespace trireme::models
