#pragma once

#include <trireme/data/dataset.h>
#include <trireme/data/loader.h>
#include <trireme/data/mixture.h>
#include <trireme/data/options.h>
#include <trireme/data/tokenizer.h>
#include <trireme/data/tokens.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

namespace trireme::data {

enum class Split { train, validation };

/// The data of a run, and statistics that convert its losses to nats per byte.
struct Datasets {
  std::shared_ptr<const Dataset> train = nullptr;
  /// `train` where it is a mixture, also below a mask; else null.
  std::shared_ptr<const Mixture> mixture = nullptr;
  /// Instead of `train`: a program's own loader of this rank's micro-batches.
  std::shared_ptr<RepeatingLoader> loader = nullptr;
  /// Null if the options name no validation data.
  std::shared_ptr<const Dataset> validation = nullptr;
  /// The tokenizer; null for images, and for tokens whose options name none.
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;
  /// Of its files as they were read (token_files/tokenizer_hash.h); none for a program's own data.
  std::optional<uint64_t> tokenizer_hash = std::nullopt;
  /// Text that is not masked only: bytes per token of the validation text, else of the train text. A loss in nats per
  /// token divided by it is in nats per byte.
  std::optional<double> bytes_per_token = std::nullopt;
  /// The same: the loss, in nats per byte, of predicting each validation (else train) byte from its frequency in the
  /// train text.
  std::optional<double> unigram_entropy_per_byte = std::nullopt;
};

/// Whether prepare_tokens() does anything.
bool has_texts(const DataOptions& options);

/// Tokenizes the texts of the options into the folder `token_cache` (token_cache/token_cache.h), unless their tokens
/// are there: what one rank of each host does before make_datasets(). Where that is impossible, as in a folder that
/// cannot be written, make_datasets() tokenizes in memory, and this logs a warning unless that will throw. JSON lines
/// are then tokenized in the folder of temporary files. `stop`: asked while it tokenizes, and while another process
/// makes the same tokens; ends both if it returns true, and nothing is left in the folder. Errors: InputError for JSON
/// lines that cannot be read, and for any file that changes while it is read; Error if `stop` ended it.
void prepare_tokens(const DataOptions& options, const std::filesystem::path& token_cache,
                    const std::function<bool()>& stop = nullptr);

/// Opens the files of both splits. Text is mapped from `token_cache`, if it is there, else read and tokenized once;
/// tokens are compared with the vocabulary once: this share of them. Errors: InputError naming the file or option, also
/// if no token of a set counts in the loss.
Datasets make_datasets(const DataOptions& options, Share checked = {}, const std::filesystem::path& token_cache = {});

/// Opens one split's files; null for validation data that the options do not name.
std::shared_ptr<const Dataset> make_dataset(const DataOptions& options, Split split);

/// Makes the loader of a split for one of `replicas` ranks. The train split follows the options. The validation split
/// is read in order and to its end, with the last micro-batch filled up.
DataLoader make_loader(std::shared_ptr<const Dataset> dataset, const DataOptions& options, Split split,
                       int64_t micro_batch_size, int64_t rank = 0, int64_t replicas = 1);

} // namespace trireme::data
