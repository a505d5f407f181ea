#include <trireme/data/make_dataset.h>

#include <trireme/base/error.h>
#include <trireme/data/idx_images.h>
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
      return open_tokens(options, checked);
    case DataOptions::Kind::text:
      return open_text(options);
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
