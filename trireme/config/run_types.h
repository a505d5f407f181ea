#pragma once

#include <trireme/base/json.h>
#include <trireme/config/run_file.h>
#include <trireme/config/run_paths.h>

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <vector>

namespace trireme::config {

/// One `type` of the section "model" or "data" of run files: a row of the reader.
struct RunType {
  std::string name;
  /// Reads the section into `run`: its keys have been checked against the key table, unless the type is a program's.
  std::function<void(const JsonNode& section, const RunPaths& paths, RunConfig& run)> read;
  /// Writes the section as `read` accepts it in any folder, defaults included.
  std::function<nlohmann::ordered_json(const RunConfig& run)> write;
  /// Checks keys that depend on each other and fills in values that follow from others. nullptr: there are none.
  std::function<void(const JsonNode& root, RunConfig& run)> check = nullptr;
  /// Its keys are not in the key table: `read` refuses the unknown ones.
  bool of_program = false;
};

/// The types that a program knows. Models are read before data.
struct RunTypes {
  std::vector<RunType> models;
  std::vector<RunType> data;

  /// The type of this name. Errors: std::logic_error when check_keys() has let an unknown one pass.
  const RunType& model(const std::string& name) const;
  const RunType& data_set(const std::string& name) const;
};

/// The rows of built_in_types().
RunType gpt_type();
RunType llama_type();
RunType bert_type();
RunType cnn_type();
RunType alexnet_type();
RunType tokens_type();
RunType text_type();
RunType json_lines_type();
RunType labelled_text_type();
RunType images_type();
RunType mixture_type();

} // namespace trireme::config
