#include <trireme/data/make_dataset.h>

#include <trireme/base/cores.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/data/idx_images.h>
#include <trireme/data/json_lines.h>
#include <trireme/data/labelled_text.h>
#include <trireme/data/lazy_tokenizer.h>
#include <trireme/data/masked_tokens.h>
#include <trireme/data/mixture.h>
#include <trireme/data/text.h>
#include <trireme/data/token_cache/lines_cache.h>
#include <trireme/data/token_cache/text_cache.h>
#include <trireme/data/token_files/file_map.h>
#include <trireme/data/token_files/shard_format.h>
#include <trireme/data/token_files/tokenizer_hash.h>
#include <trireme/data/tokenize/input_stamp.h>
#include <trireme/data/tokens.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

std::string source_name(const std::vector<fs::path>& files) {
  return files.size() == 1 ? files[0].string() : concat(files[0].string(), " and ", files.size() - 1, " more");
}

void check_vocabulary(const Tokenizer& tokenizer, int64_t vocab_size) {
  if (vocab_size > 0 && tokenizer.vocab_size() > vocab_size) {
    throw InputError("data",
                     concat("the tokenizer ", tokenizer.describe(), " has ", tokenizer.vocab_size(),
                            " tokens,"
                            " the model's vocab_size is ",
                            vocab_size),
                     concat("Set the model's vocab_size to ", tokenizer.vocab_size(), " or more."));
  }
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name, int64_t vocab_size) {
  std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer(name);
  check_vocabulary(*tokenizer, vocab_size);
  return tokenizer;
}

// Errors: InputError if a loss on these tokens would be a mean of nothing.
void check_counted(const TokensDataset& tokens, const std::vector<fs::path>& files, DataOptions::Kind kind) {
  if (tokens.counted_tokens() > 0) {
    return;
  }
  throw InputError(
      "data", concat("no token of ", source_name(files), " counts in the loss"),
      concat("Only what the role \"assistant\" says and a prompt's response do: look at the roles, or count "
             "all tokens with ",
             kind == DataOptions::Kind::json_lines ? "data.loss_on \"all\"."
                                                   : "\"trireme data tokenize --loss-on all\"."));
}

// `hash`: of the options' tokenizer, if they name one.
Datasets open_tokens(const DataOptions& options, Share checked, std::optional<uint64_t> hash = std::nullopt) {
  Datasets result;
  int64_t vocab_size = options.vocab_size;
  if (!options.tokenizer.empty()) {
    result.tokenizer = open_tokenizer(options.tokenizer, vocab_size);
    vocab_size = vocab_size > 0 ? vocab_size : result.tokenizer->vocab_size();
  }
  const auto open = [&](const std::vector<fs::path>& files) {
    auto tokens =
        std::make_shared<TokensDataset>(files, options.sequence_length, vocab_size, options.token_bytes, options.pack);
    tokens->check(checked); // fail now, not in the last epoch
    if (options.mask_fraction == 0) {
      check_counted(*tokens, files, options.kind);
    }
    return tokens;
  };
  const auto train = open(options.train);
  result.train = train;
  uint64_t made_with = train->tokenizer_hash(); // 0: unknown
  if (!options.validation.empty()) {
    const auto validation = open(options.validation);
    result.validation = validation;
    if (made_with != 0 && validation->tokenizer_hash() != 0 && validation->tokenizer_hash() != made_with) {
      throw InputError("data",
                       concat(source_name(options.train), " and ", source_name(options.validation),
                              ", the validation data, were made with different tokenizers"),
                       "Make one of them again with the other's tokenizer.");
    }
    made_with = made_with == 0 ? validation->tokenizer_hash() : made_with;
  }
  if (made_with != 0 && hash && made_with != *hash) {
    log::warning(source_name(options.train), " was made with another tokenizer than ", options.tokenizer,
                 ", the run's: its ids may mean other tokens");
  }
  return result;
}

std::string tokenizer_name(const DataOptions& options) {
  return options.tokenizer.empty() ? "bytes" : options.tokenizer;
}

TextFiles texts_of(const DataOptions& options) {
  return {options.train, options.validation, options.validation_fraction, tokenizer_name(options)};
}

using Texts = std::pair<std::shared_ptr<TextDataset>, std::shared_ptr<TextDataset>>;

std::string held_out_name(const DataOptions& options) {
  return options.validation.empty() ? concat("the validation part (validation_fraction ", options.validation_fraction,
                                             ") of ", source_name(options.train))
                                    : source_name(options.validation);
}

Texts map_texts(const CachedText& cached, const DataOptions& options) {
  const auto map = [&](const CachedText::Split& split, const std::string& name) {
    return std::make_shared<TextDataset>(split, cached.in_use, options.sequence_length, name);
  };
  return {map(cached.train, source_name(options.train)),
          cached.validation ? map(*cached.validation, held_out_name(options)) : nullptr};
}

Texts tokenize_texts(const DataOptions& options, const Tokenizer& tokenizer) {
  log::debug("tokenizing in memory: ", source_name(options.train));
  std::string text = read_texts(options.train);
  std::string held_out;
  if (!options.validation.empty()) {
    held_out = read_texts(options.validation);
  } else {
    const size_t start = validation_start(text, options.validation_fraction);
    held_out = text.substr(start);
    text.resize(start);
  }
  const auto encode = [&](const std::string& all, const std::string& name) {
    return std::make_shared<TextDataset>(all, tokenizer, options.sequence_length, name);
  };
  return {encode(text, source_name(options.train)),
          held_out.empty() ? nullptr : encode(held_out, held_out_name(options))};
}

// Cached tokens do without a tokenizer until it is used: their shards have the size of its vocabulary.
std::shared_ptr<const Tokenizer> tokenizer_of(const DataOptions& options, const std::optional<CachedText>& cached) {
  if (!cached || tokenizer_name(options) == "bytes") {
    return open_tokenizer(tokenizer_name(options), options.vocab_size);
  }
  const fs::path& shard = cached->train.shards.front();
  const ShardHeader header = read_shard_header(FileMap(shard).bytes(), shard);
  const auto tokenizer = std::make_shared<LazyTokenizer>(options.tokenizer, header.vocab_size, header.tokenizer_hash);
  check_vocabulary(*tokenizer, options.vocab_size);
  return tokenizer;
}

// `tokenizer`: null if it is not open yet.
Datasets open_text(const DataOptions& options, const fs::path& token_cache,
                   std::shared_ptr<const Tokenizer> tokenizer = nullptr) {
  Datasets result;
  result.tokenizer = std::move(tokenizer);
  const auto cached = token_cache.empty() ? std::nullopt : find_text(TokenCache(token_cache), texts_of(options));
  if (result.tokenizer == nullptr) {
    result.tokenizer = tokenizer_of(options, cached);
  }
  const auto [train, validation] = cached ? map_texts(*cached, options) : tokenize_texts(options, *result.tokenizer);
  const auto scored = validation == nullptr ? train : validation;
  result.train = train;
  result.validation = validation;
  result.bytes_per_token = scored->bytes_per_token();
  result.unigram_entropy_per_byte = scored->unigram_entropy_per_byte(*train);
  return result;
}

LineFiles lines_of(const DataOptions& options) {
  return {options.train,   options.validation,    tokenizer_name(options),
          options.loss_on, options.chat_template, options.chat_template_place};
}

CachedText make_lines(const DataOptions& options, const TokenCache& cache, const MakeTokenizer& tokenizer) {
  return find_or_make_lines(cache, lines_of(options), tokenizer, usable_cores());
}

// Without a cache the shards have a folder of their own, which is removed when they are mapped.
Datasets open_lines(const DataOptions& options, const fs::path& token_cache,
                    std::shared_ptr<const Tokenizer> tokenizer = nullptr) {
  Datasets result;
  result.tokenizer = std::move(tokenizer);
  auto cached = token_cache.empty() ? std::nullopt : find_lines(TokenCache(token_cache), lines_of(options));
  if (result.tokenizer == nullptr) {
    result.tokenizer = tokenizer_of(options, cached);
  }
  std::optional<ScratchFolder> own;
  if (!cached) {
    own.emplace(make_scratch_folder("trireme-tokens"));
    log::debug("tokenizing ", source_name(options.train), " into ", own->path.string());
    cached = make_lines(options, TokenCache(own->path), [&] { return result.tokenizer; });
  }
  const int64_t vocab_size = options.vocab_size > 0 ? options.vocab_size : result.tokenizer->vocab_size();
  const auto map = [&](const CachedText::Split& split, const std::vector<fs::path>& files) {
    auto lines = std::make_shared<JsonLines>(split, cached->in_use, options.sequence_length, vocab_size, options.pack,
                                             source_name(files));
    if (options.mask_fraction == 0) {
      check_counted(*lines, files, options.kind);
    }
    return lines;
  };
  result.train = map(cached->train, options.train);
  result.validation = cached->validation ? map(*cached->validation, options.validation) : nullptr;
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

// The mean over the samples that are scored: of validation data, else of what is trained on; nullopt if a set has none.
std::optional<double> mean_bytes_per_token(const DataOptions& options, const std::vector<Datasets>& sets) {
  double bytes = 0;
  double weights = 0;
  for (size_t i = 0; i < sets.size(); ++i) {
    if (!sets[i].bytes_per_token) {
      return std::nullopt;
    }
    const double weight = !options.has_validation() ? options.sets[i].weight
                          : sets[i].validation      ? static_cast<double>(sets[i].validation->size())
                                                    : 0;
    bytes += weight * *sets[i].bytes_per_token;
    weights += weight;
  }
  return bytes / weights;
}

void check_tokenizer_of_mixture(const MixtureSet& set, const Dataset& tokens, const std::string& tokenizer,
                                std::optional<uint64_t> hash) {
  const auto* const shards = dynamic_cast<const TokensDataset*>(&tokens);
  if (!hash || shards == nullptr || shards->tokenizer_hash() == 0 || shards->tokenizer_hash() == *hash) {
    return;
  }
  throw InputError("data",
                   concat(set.place, ": ", source_name(set.data->train), " was made with another tokenizer than ",
                          tokenizer, ", the mixture's"),
                   "Make its tokens again with that one.");
}

Datasets open_mixture(const DataOptions& options, Share checked, const fs::path& token_cache,
                      std::optional<uint64_t> hash) {
  Datasets result;
  result.tokenizer = options.tokenizer.empty() ? nullptr : open_tokenizer(options.tokenizer, options.vocab_size);
  std::vector<Datasets> sets;
  std::vector<Mixture::Set> trained;
  std::vector<std::shared_ptr<const Dataset>> held_out;
  for (const MixtureSet& set : options.sets) {
    DataOptions own = *set.data;
    own.sequence_length = options.sequence_length;
    own.mask_fraction = options.mask_fraction;
    own.vocab_size = options.vocab_size == 0 && result.tokenizer ? result.tokenizer->vocab_size() : options.vocab_size;
    own.tokenizer = own.kind == DataOptions::Kind::tokens ? "" : options.tokenizer;
    sets.push_back(own.kind == DataOptions::Kind::text         ? open_text(own, token_cache, result.tokenizer)
                   : own.kind == DataOptions::Kind::json_lines ? open_lines(own, token_cache, result.tokenizer)
                                                               : open_tokens(own, checked));
    const Datasets& opened = sets.back();
    check_tokenizer_of_mixture(set, *opened.train, options.tokenizer, hash);
    trained.push_back({opened.train, set.weight, source_name(own.train)});
    if (opened.validation != nullptr) {
      check_tokenizer_of_mixture(set, *opened.validation, options.tokenizer, hash);
      held_out.push_back(opened.validation);
    }
  }
  result.bytes_per_token = mean_bytes_per_token(options, sets);
  result.mixture =
      std::make_shared<Mixture>(std::move(trained), Mixture::Order{.shuffle = options.shuffle, .seed = options.seed});
  result.train = result.mixture;
  if (!held_out.empty()) {
    result.validation = std::make_shared<Concatenation>(std::move(held_out));
  }
  return result;
}

LabelledFiles labelled_files_of(const DataOptions& options) {
  return {options.train, options.validation, tokenizer_name(options), options.sequence_length, options.classes};
}

// The options of both splits of texts with labels; `names`: of the training data's, or none if they are not known yet.
LabelledText::Options texts_with_labels(const DataOptions& options, Split split,
                                        std::optional<std::vector<std::string>> names = std::nullopt) {
  return {split == Split::train ? options.train : options.validation, options.sequence_length, options.classes,
          std::move(names)};
}

LabelledSplits encode_labelled(const DataOptions& options, const Tokenizer& tokenizer, const Stop& stop = nullptr) {
  const auto with_stop = [&](LabelledText::Options texts) {
    texts.stop = stop;
    return texts;
  };
  const LabelledText train(with_stop(texts_with_labels(options, Split::train)), tokenizer);
  LabelledSplits out{train.texts(), std::nullopt, train.names()};
  if (!options.validation.empty()) {
    out.validation =
        LabelledText(with_stop(texts_with_labels(options, Split::validation, train.names())), tokenizer).texts();
  }
  return out;
}

Datasets open_labelled_text(const DataOptions& options, const fs::path& token_cache) {
  Datasets result;
  result.tokenizer = open_tokenizer(tokenizer_name(options), options.vocab_size);
  const Tokenizer& tokenizer = *result.tokenizer;
  auto texts = token_cache.empty() ? std::nullopt : find_labelled(TokenCache(token_cache), labelled_files_of(options));
  if (!texts) {
    texts = encode_labelled(options, tokenizer);
  }
  result.train = std::make_shared<LabelledText>(texts_with_labels(options, Split::train, texts->names), tokenizer,
                                                std::move(texts->train));
  if (texts->validation) {
    result.validation = std::make_shared<LabelledText>(texts_with_labels(options, Split::validation, texts->names),
                                                       tokenizer, *std::move(texts->validation));
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

Datasets open_all(const DataOptions& options, Share checked, const fs::path& token_cache,
                  std::optional<uint64_t> hash) {
  using Kind = DataOptions::Kind;
  if (options.train.empty() && options.kind != Kind::of_program && options.kind != Kind::mixture) {
    throw InputError("data", "no train files given", "Set data.train in the run file.");
  }
  const auto masked_if_asked = [&](Datasets windows) {
    return options.mask_fraction > 0 ? masked(std::move(windows), options) : std::move(windows);
  };
  switch (options.kind) {
    case Kind::tokens:
      return masked_if_asked(open_tokens(options, checked, hash));
    case Kind::text:
      return masked_if_asked(open_text(options, token_cache));
    case Kind::json_lines:
      return masked_if_asked(open_lines(options, token_cache));
    case Kind::mixture:
      return masked_if_asked(open_mixture(options, checked, token_cache, hash));
    case Kind::labelled_text:
      return open_labelled_text(options, token_cache);
    case Kind::images:
      return open_images(options);
    case Kind::of_program:
      break;
  }
  throw Error("data", "these samples are made by the program that registered their type");
}

} // namespace

bool has_texts(const DataOptions& options) {
  using Kind = DataOptions::Kind;
  return options.kind == Kind::text || options.kind == Kind::json_lines || options.kind == Kind::labelled_text ||
         std::ranges::any_of(options.sets, [](const MixtureSet& set) { return has_texts(*set.data); });
}

void prepare_tokens(const DataOptions& options, const fs::path& token_cache, const std::function<bool()>& stop) {
  using Kind = DataOptions::Kind;
  for (const MixtureSet& set : options.sets) {
    DataOptions own = *set.data;
    own.tokenizer = options.tokenizer;
    own.vocab_size = options.vocab_size;
    prepare_tokens(own, token_cache, stop);
  }
  if (options.kind == Kind::mixture || !has_texts(options) || options.train.empty()) {
    return;
  }
  const auto tokenizer = [&] { return open_tokenizer(tokenizer_name(options), options.vocab_size); };
  const TokenCache cache(token_cache, TokenCache::kMostWait, stop);
  try {
    if (options.kind == Kind::labelled_text) {
      const auto opened = tokenizer();
      find_or_make_labelled(cache, labelled_files_of(options), opened->vocab_size(),
                            [&] { return encode_labelled(options, *opened, stop); });
    } else if (options.kind == Kind::json_lines) {
      make_lines(options, cache, tokenizer);
    } else {
      find_or_make_text(cache, texts_of(options), tokenizer, usable_cores());
    }
  } catch (const ChangedInput&) {
    throw;
  } catch (const InputError& error) { // make_datasets() finds the same, or encodes the text in one piece
    if (options.kind == Kind::json_lines) {
      throw;
    }
    log::debug("the text is not tokenized into ", token_cache.string(), ": ", error.what());
  } catch (const Error& error) {
    if (stop && stop()) {
      throw;
    }
    log::warning("each rank tokenizes ", source_name(options.train),
                 options.kind == Kind::json_lines ? " for itself: " : " in memory: ", error.what());
  }
}

Datasets make_datasets(const DataOptions& options, Share checked, const fs::path& token_cache) {
  std::optional<uint64_t> hash; // first: files that change while they are read have another one afterwards
  if (!options.tokenizer.empty()) {
    hash = tokenizer_hash(options.tokenizer);
  }
  Datasets datasets = open_all(options, checked, token_cache, hash);
  datasets.tokenizer_hash = hash;
  return datasets;
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
    order.shuffle = options.shuffle && options.kind != DataOptions::Kind::mixture; // which shuffles its sets
    order.drop_last = options.drop_last;
  }
  const int64_t size = dataset->size();
  return DataLoader(std::move(dataset), DistributedSampler(size, order), micro_batch_size, options.prefetch);
}

} // namespace trireme::data
