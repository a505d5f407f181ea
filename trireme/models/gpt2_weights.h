#pragma once

#include <trireme/checkpoint/weight_files.h>
#include <trireme/models/gpt.h>

#include <filesystem>
#include <set>
#include <string>

namespace trireme::models {

/// Copies weights with Hugging Face GPT-2 names into `model`: a safetensors file, a folder
/// with one, or an index of several. Names with and without "transformer." are
/// understood; linear weights are [in, out] there (Conv1D) and transposed here.
/// A model whose head is its embedding takes a file with a head where the two are equal.
/// Errors: InputError naming the tensor that is missing or has another shape, the
/// tensors that the model has no place for, and a head that a tied model would lose.
void load_gpt2(Gpt& model, const std::filesystem::path& weights);

/// Writes `model` as Hugging Face's transformers reads it: a folder with config.json and model.safetensors, for
/// GPT2LMHeadModel.from_pretrained(folder). A path that ends in .safetensors is a file with the weights alone. Folders
/// that are missing are made. Values keep their dtype. The ids of the first and last token are GPT-2's where the
/// vocabulary has them, otherwise none. At ZeRO stage 3 all parameters must be gathered. Errors: InputError naming a
/// parameter of which this tensor rank has only a part.
void save_gpt2(const Gpt& model, const std::filesystem::path& path);

/// Errors: InputError naming a tensor of `files`, which are in `weights`, that is none of `parameters`, named as in
/// Gpt; a head that differs from the embedding where there is no parameter for it. Cost: where there is a head but no
/// parameter for it, one read of head and embedding.
void check_gpt2_names(const std::set<std::string>& parameters, const checkpoint::WeightFiles& files,
                      const std::filesystem::path& weights);

/// Fills one parameter, named as in Gpt, from the files.
void load_gpt2_parameter(const std::string& parameter, const at::Tensor& value, const checkpoint::WeightFiles& files,
                         const std::filesystem::path& weights);

} // namespace trireme::models
