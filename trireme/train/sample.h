#pragma once

#include <trireme/train/task.h>

#include <trireme/comm/world.h>
#include <trireme/config/run_file.h>
#include <trireme/data/tokenizer.h>

#include <filesystem>
#include <optional>
#include <string>

namespace trireme::train {

/// The text that a language model generates from `training.sample`'s prompt. `checkpoints`: the folder whose last
/// checkpoint has its weights, if no rank has all of them; then task.language becomes a separate model. Errors:
/// InputError for a checkpoint that cannot be read.
std::string sample_of(const config::RunConfig& run, Task& task, const data::Tokenizer& tokenizer,
                      const std::optional<std::filesystem::path>& checkpoints);

/// Checks that training.export can be written: it is as generate::check_export_folder() wants it, and not in a folder
/// of the run's own. Errors: InputError.
void check_export(const config::RunConfig& run, const std::filesystem::path& run_folder);

/// Writes training.export, if the run has one, from the newest checkpoint of the run folder: no rank has the whole
/// model. Collective. Errors: NotSavedError on every rank, where generate::export_model() fails.
void export_run(const config::RunConfig& run, const std::filesystem::path& run_folder, comm::World& world,
                bool is_worker);

} // namespace trireme::train
