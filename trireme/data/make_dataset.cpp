#include <trireme/data/make_dataset.h>

#include <trireme/base/error.h>
#include <trireme/data/idx_images.h>
#include <trireme/data/labelled_text.h>
#include <trireme/data/masked_tokens.h>
#include <trireme/data/text.h>
#include <trireme/data/tokens.h>

#include <string>
#include <utility>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

std::string source_name(const std::vector<fs::path>& files) {
  return files.size() == 1 ? files[0].string() : concat(files[0].string(), " and ", files.size() - 1, " more");
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name, int64_t vocab_size) {
  std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer(name);
  if (vocab_size > 0 && tokenizer->vocab_size() > vocab_size) {
    throw InputError("data",
                     concat("the tokenizer ", tokenizer->describe(), " has ", tokenizer->vocab_size(),
                            " tokens,"
                            " the model's vocab_size is ",
                            vocab_size),
                     concat("Set the model's vocab_size to ", tokenizer->vocab_size(), " or more."));
  }
  return tokenizer;
}

Datasets open_tokens(const DataOptions& options, Share checked) {
  Datasets result;
  int64_t vocab_size = options.vocab_size;
  if (!options.tokenizer.empty()) {
    result.tokenizer = open_tokenizer(options.tokenizer, vocab_size);
    vocab_size = vocab_size > 0 ? vocab_size : result.tokenizer->vocab_size();
  }
  const auto open = [&](const std::vector<fs::path>& files) {
    auto tokens = std::make_shared<TokensDataset>(files, options.sequence_length, vocab_size, options.token_bytes);
    tokens->check(checked); // fail now, not in the last epoch
    return tokens;
  };
  result.train = open(options.train);
  if (!options.validation.empty()) {
    result.validation = open(options.validation);
  }
  return result;
}

Datasets open_text(const DataOptions& options) {
  Datasets result;
  std::string text = read_texts(options.train);
  std::string held_out;
  std::string held_out_name;
  if (!options.validation.empty()) {
    held_out = read_texts(options.validation);
    held_out_name = source_name(options.validation);
  } else {
    const size_t start = validation_start(text, options.validation_fraction);
    held_out = text.substr(start);
    held_out_name = concat("the validation part (validation_fraction ", options.validation_fraction, ") of ",
                           source_name(options.train));
    text.resize(start);
  }
  result.tokenizer = open_tokenizer(options.tokenizer.empty() ? "bytes" : options.tokenizer, options.vocab_size);
  const Tokenizer& tokenizer = *result.tokenizer;
  const auto train =
      std::make_shared<TextDataset>(text, tokenizer, options.sequence_length, source_name(options.train));
  auto scored = train;
  if (!held_out.empty()) {
    scored = std::make_shared<TextDataset>(held_out, tokenizer, options.sequence_length, held_out_name);
    result.validation = scored;
  }
  result.train = train;
  result.bytes_per_token = scored->bytes_per_token();
  result.unigram_entropy_per_byte = scored->unigram_entropy_per_byte(*train);
  return result;
}

// Errors: InputError if the tokenizer has none, or the model's vocabulary lacks it.
int64_t mask_token_of(const DataOptions& options, const Tokenizer* tokenizer, int64_t vocabulary) {
  int64_t token = options.mask_token;
  if (token < 0 && tokenizer != nullptr) {
    const bool bytes = dynamic_cast<const ByteTokenizer*>(tokenizer) != nullptr;
    token = bytes ? tokenizer->vocab_size() : token_of(*tokenizer, "[MASK]").value_or(-1);
    token = token >= 0 ? token : token_of(*tokenizer, "<mask>").value_or(-1);
    vocabulary = bytes && options.vocab_size == 0 ? token + 1 : vocabulary;
  }
  if (token < 0) {
    throw InputError("data",
                     tokenizer == nullptr
                         ? std::string("there is no tokenizer that has a mask token")
                         : concat("the tokenizer ", tokenizer->describe(), " has neither \"[MASK]\" nor \"<mask>\""),
                     "Set model.mask_token to the id of the token that replaces others.");
  }
  if (token >= vocabulary) {
    throw InputError("data", concat("mask_token ", token, " is outside of a vocabulary of ", vocabulary),
                     concat("Set model.vocab_size to ", token + 1, " or more."));
  }
  return token;
}

// Windows of tokens for a model that predicts masked ones. Their losses are not those of a text's bytes.
Datasets masked(Datasets windows, const DataOptions& options) {
  const Tokenizer* const tokenizer = windows.tokenizer.get();
  MaskedTokensOptions masking{.fraction = options.mask_fraction, .seed = options.seed};
  masking.vocabulary = tokenizer != nullptr ? tokenizer->vocab_size() : options.vocab_size;
  const int64_t of_model = options.vocab_size > 0 ? options.vocab_size : masking.vocabulary;
  masking.mask_token = mask_token_of(options, tokenizer, of_model);
  for (std::shared_ptr<const Dataset>* set : {&windows.train, &windows.validation}) {
    if (*set != nullptr) {
      *set = std::make_shared<MaskedTokens>(*set, masking);
    }
  }
  windows.bytes_per_token.reset();
  windows.unigram_entropy_per_byte.reset();
  return windows;
}

Datasets open_labelled_text(const DataOptions& options) {
  Datasets result;
  result.tokenizer = open_tokenizer(options.tokenizer.empty() ? "bytes" : options.tokenizer, options.vocab_size);
  LabelledText::Options texts{options.train, options.sequence_length, options.classes};
  const auto train = std::make_shared<LabelledText>(texts, *result.tokenizer);
  result.train = train;
  if (!options.validation.empty()) {
    texts.files = options.validation;
    texts.names = train->names();
    result.validation = std::make_shared<LabelledText>(texts, *result.tokenizer);
  }
  return result;
}

Datasets open_images(const DataOptions& options) {
  const auto open = [&](const std::vector<fs::path>& images, const std::vector<fs::path>& labels) {
    return std::make_shared<IdxImages>(IdxImages::Options{images, labels, options.mean, options.std, options.classes});
  };
  Datasets result;
  result.train = open(options.train, options.train_labels);
  if (!options.validation.empty() || !options.validation_labels.empty()) {
    result.validation = open(options.validation, options.validation_labels);
  }
  return result;
}

} // namespace

Datasets make_datasets(const DataOptions& options, Share checked) {
  if (options.train.empty() && options.kind != DataOptions::Kind::of_program) {
    throw InputError("data", "no train files given", "Set data.train in the run file.");
  }
  switch (options.kind) {
    case DataOptions::Kind::tokens:
      return options.mask_fraction > 0 ? masked(open_tokens(options, checked), options) : open_tokens(options, checked);
    case DataOptions::Kind::text:
      return options.mask_fraction > 0 ? masked(open_text(options), options) : open_text(options);
    case DataOptions::Kind::labelled_text:
      return open_labelled_text(options);
    case DataOptions::Kind::images:
      return open_images(options);
    case DataOptions::Kind::of_program:
      break;
  }
  throw Error("data", "these samples are made by the program that registered their type");
}

std::shared_ptr<const Dataset> make_dataset(const DataOptions& options, Split split) {
  Datasets datasets = make_datasets(options);
  return split == Split::train ? std::move(datasets.train) : std::move(datasets.validation);
}

DataLoader make_loader(std::shared_ptr<const Dataset> dataset, const DataOptions& options, Split split,
                       int64_t micro_batch_size, int64_t rank, int64_t replicas) {
  if (dataset == nullptr) {
    throw InputError("data", "there is no validation data",
                     "Set data.validation, or for text data.validation_fraction.");
  }
  SamplerOptions order{.shuffle = false, .drop_last = false, .seed = options.seed, .rank = rank, .replicas = replicas};
  if (split == Split::train) {
    order.shuffle = options.shuffle;
    order.drop_last = options.drop_last;
  }
  const int64_t size = dataset->size();
  return DataLoader(std::move(dataset), DistributedSampler(size, order), micro_batch_size, options.prefetch);
}

} // namespace trireme::data
