#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/config/run_file.h>
#include <trireme/data/make_dataset.h>

#include <filesystem>
#include <string>
#include <vector>

// A run keeps what a Hugging Face folder has beside its weights in RUN/model: tokenizer, chat template, config.json,
// and the names of labels.
namespace trireme::generate {

inline constexpr const char* kKept = "model";

/// Opens a checkpoint to be read for longer than its training may keep it (OpenOptions::hold_files). `ranks`: those
/// that open the same one, which the first of them finds. Collective.
checkpoint::Checkpoint open_held(const std::filesystem::path& path, const comm::Group& ranks = {});

/// The configuration of a checkpoint's run. Errors: InputError of `area` for a model of a program's own type.
config::RunConfig run_of(const checkpoint::Checkpoint& saved, const char* area);

/// Copies them from the model's folder (or the run it begins with) and the tokenizer's into `run_folder`/model, if
/// there are any. A tokenizer file of another name becomes tokenizer.json. The chat template of the run's
/// conversations, if they have one of their own (data.chat_template, the same in all sets of a mixture), takes the
/// place of the tokenizer's. `datasets`: what the run trains on.
///
/// A new run removes what an earlier one kept. One that is `resumed` keeps what is there. Errors: InputError if a
/// resumed run's tokenizer, config.json or labels have changed, or the tokenizer since it was read; Error for a file
/// that cannot be written.
void keep_model_files(const config::RunConfig& run, const std::filesystem::path& run_folder,
                      const data::Datasets& datasets, bool resumed);

/// Copies the files that a run keeps into `to`. `checkpoint`: a checkpoint in the run's folder checkpoints.
void copy_kept_files(const std::filesystem::path& checkpoint, const std::filesystem::path& to);

/// The names of labels that a run has kept; empty if they were numbers.
std::vector<std::string> kept_labels(const std::filesystem::path& checkpoint);

/// Where the run of a checkpoint keeps its files, RUN/model of RUN/checkpoints/NAME; there may be none. Of a checkpoint
/// that was copied elsewhere: the folder "model" in it.
std::filesystem::path kept_folder(const std::filesystem::path& checkpoint);

/// The run's own copy of its tokenizer, or the path in `run` where there is none.
std::filesystem::path kept_tokenizer(const config::RunConfig& run, const std::filesystem::path& checkpoint);

} // namespace trireme::generate
