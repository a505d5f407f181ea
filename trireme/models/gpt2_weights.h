#pragma once

#include <trireme/models/gpt.h>

#include <filesystem>

namespace trireme::models {

/// Copies weights with Hugging Face GPT-2 names into `model`: a safetensors file, a folder
/// with one, or an index of several. Accepts names with and without "transformer."; linear
/// weights in the file are [in, out] (Conv1D) and transposed. A model whose head is its
/// embedding accepts a file with a head if the two are equal. Errors: InputError naming a
/// tensor that is missing, has another shape or is not in the model, and a head that a tied
/// model would lose.
void load_gpt2(Gpt& model, const std::filesystem::path& weights);

/// Writes `model` for Hugging Face's transformers: a folder with config.json and model.safetensors, for
/// GPT2LMHeadModel.from_pretrained(folder). A path that ends in .safetensors is a file with the weights alone. Makes
/// missing folders. Values keep their dtype. The ids of the first and last token are GPT-2's if the vocabulary has
/// them, otherwise absent. At ZeRO stage 3 all parameters must be gathered. Errors: InputError naming a parameter of
/// which this tensor rank has only a part.
void save_gpt2(const Gpt& model, const std::filesystem::path& path);

} // namespace trireme::models
