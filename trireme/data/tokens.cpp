#include <trireme/data/tokens.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/units.h>
#include <trireme/data/mapped_tokens.h>
#include <trireme/data/token_files/shard_format.h>
#include <trireme/data/windows.h>

#include <ATen/ops/arange.h>

#include <algorithm>
#include <iterator>
#include <numeric>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

} // namespace

TokensDataset::TokensDataset(const std::vector<fs::path>& files, int64_t sequence_length, int64_t vocab_size,
                             int64_t token_bytes, bool pack)
    : sequence_length_(sequence_length),
      vocab_size_(vocab_size),
      token_bytes_(token_bytes),
      pack_(pack),
      masks_targets_(pack) {
  if (files.empty()) {
    throw InputError("data", "no files of tokens given");
  }
  if (token_bytes != 0 && token_bytes != 2 && token_bytes != 4) {
    throw InputError("data", concat("data.token_bytes must be 2 or 4, got ", token_bytes));
  }
  const MappedTokens* raw = nullptr;
  for (TokenFile& opened : open_token_files(files, token_bytes)) {
    files_.push_back(std::make_unique<MappedTokens>(std::move(opened), num_tokens_, num_documents_, token_bytes));
    const MappedTokens& file = *files_.back();
    raw = file.file().kind == TokenFile::Kind::raw ? &file : raw;
    num_tokens_ += file.num_tokens();
    num_documents_ += file.file().num_documents;
    masks_targets_ |= file.file().mask != nullptr;
    if (vocab_size > 0 && file.file().vocab_size > vocab_size) {
      throw InputError("data",
                       concat(file.path().string(), " has tokens of a vocabulary of ", file.file().vocab_size,
                              ", the model's vocab_size is ", vocab_size),
                       concat("Set the model's vocab_size to ", file.file().vocab_size,
                              " or more, or make the tokens with the right tokenizer."));
    }
  }
  if (token_bytes == 0 && vocab_size > kMost16BitVocabulary && raw != nullptr) {
    throw InputError("data",
                     concat(raw->path().string(), " is read as 16-bit tokens, which are below ", kMost16BitVocabulary,
                            ", and the vocabulary has ", vocab_size),
                     concat("Set data.token_bytes to 4 if the files have 32-bit tokens, else lower vocab_size to ",
                            kMost16BitVocabulary, " or set data.token_bytes to 2."));
  }
  if (pack && raw != nullptr) {
    throw InputError("data", concat(raw->path().string(), " does not say where documents begin, and data.pack is true"),
                     "Make token shards with \"trireme data tokenize\", or leave data.pack out.");
  }
  size_ = count_windows(num_tokens_, sequence_length,
                        files.size() == 1 ? files[0].string() : concat("the data in ", files.size(), " files"));
}

uint64_t TokensDataset::checksum() const {
  std::vector<uint64_t> of_files;
  std::ranges::transform(files_, std::back_inserter(of_files), [](const auto& file) { return file->file().checksum; });
  return joint_checksum(of_files);
}

int64_t TokensDataset::counted_tokens() const {
  int64_t counted = 0;
  for (const auto& file : files_) {
    counted += file->file().counted_tokens.value_or(file->num_tokens());
  }
  return counted;
}

uint64_t TokensDataset::tokenizer_hash() const {
  const auto known = std::ranges::find_if(files_, [](const auto& file) { return file->file().tokenizer_hash != 0; });
  return known == files_.end() ? 0 : (*known)->file().tokenizer_hash;
}

std::optional<int64_t> TokensDataset::num_documents() const {
  const bool known =
      std::ranges::none_of(files_, [](const auto& file) { return file->file().kind == TokenFile::Kind::raw; });
  return known ? std::optional(num_documents_) : std::nullopt;
}

int64_t TokensDataset::document_start(int64_t index) const {
  if (index < 0 || index >= num_documents_) {
    throw Error("data", concat("there is no document ", index, " among ", num_documents_));
  }
  const auto after = [](int64_t document, const auto& file) { return document < file->first_document(); };
  const auto& file = *(std::upper_bound(files_.begin(), files_.end(), index, after) - 1);
  return file->first_token() + file->file().document_start(index - file->first_document());
}

TokensDataset::~TokensDataset() = default;

template <typename Visit>
void TokensDataset::visit_files(int64_t start, int64_t count, const Visit& visit) const {
  const auto after = [](int64_t token, const auto& file) { return token < file->first_token(); };
  auto file = std::upper_bound(files_.begin(), files_.end(), start, after) - 1;
  while (count > 0) {
    const int64_t offset = start - (*file)->first_token();
    const int64_t here = std::min(count, (*file)->num_tokens() - offset);
    visit(**file, offset, here);
    count -= here;
    start += here;
    ++file;
  }
}

void TokensDataset::read(int64_t start, std::span<int64_t> out) const {
  visit_files(start, std::ssize(out), [&](const MappedTokens& file, int64_t offset, int64_t count) {
    const auto part = out.first(static_cast<size_t>(count));
    file.read(offset, part);
    if (vocab_size_ > 0 && *std::max_element(part.begin(), part.end()) >= vocab_size_) {
      const auto first = std::find_if(part.begin(), part.end(), [this](int64_t token) { return token >= vocab_size_; });
      refuse(file, offset + (first - part.begin()), *first);
    }
    out = out.subspan(static_cast<size_t>(count));
  });
}

int64_t TokensDataset::counted_targets(std::span<const int64_t> indices) const {
  check_indices(indices, size_);
  int64_t counted = 0;
  for (const int64_t index : indices) {
    visit_files(
        index * sequence_length_ + 1, sequence_length_,
        [&](const MappedTokens& file, int64_t offset, int64_t count) { counted += file.count_targets(offset, count); });
    if (pack_) {
      const int64_t begin = index * sequence_length_ + 1;
      visit_documents(begin, begin + sequence_length_, [&](int64_t token) { counted -= counts(token) ? 1 : 0; });
    }
  }
  return counted;
}

bool TokensDataset::counts(int64_t token) const {
  int64_t counted = 0;
  visit_files(token, 1, [&](const MappedTokens& file, int64_t offset, int64_t count) {
    counted = file.count_targets(offset, count);
  });
  return counted > 0;
}

template <typename Visit>
void TokensDataset::visit_documents(int64_t begin, int64_t end, const Visit& visit) const {
  int64_t document = 0; // the first that begins at `begin` or later
  for (int64_t end_of_search = num_documents_; document < end_of_search;) {
    const int64_t middle = document + (end_of_search - document) / 2;
    if (document_start(middle) < begin) {
      document = middle + 1;
    } else {
      end_of_search = middle;
    }
  }
  for (int64_t last = -1; document < num_documents_; ++document) {
    const int64_t start = document_start(document);
    if (start >= end) {
      return;
    }
    if (start != last) { // Megatron's may be empty
      visit(start);
    }
    last = start;
  }
}

void TokensDataset::tell_documents_apart(std::span<const int64_t> indices, Batch& batch) const {
  if (!batch.inputs.empty()) {
    const at::Tensor positions_BL = at::arange(sequence_length_, at::kLong).repeat({std::ssize(indices), 1});
    auto* row = positions_BL.mutable_data_ptr<int64_t>();
    for (const int64_t index : indices) {
      const int64_t begin = index * sequence_length_;
      visit_documents(begin, begin + sequence_length_, [&](int64_t token) {
        std::iota(row + (token - begin), row + sequence_length_, 0); // until the next one
      });
      row += sequence_length_;
    }
    batch.inputs.push_back(positions_BL);
  }
  if (!batch.targets.empty()) {
    auto* row = batch.targets[0].mutable_data_ptr<int64_t>();
    for (const int64_t index : indices) {
      const int64_t begin = index * sequence_length_ + 1;
      visit_documents(begin, begin + sequence_length_, [&](int64_t token) { row[token - begin] = kIgnoredTarget; });
      row += sequence_length_;
    }
  }
}

void TokensDataset::ignore_targets(std::span<const int64_t> indices, Batch& batch) const {
  if (!masks_targets_ || batch.targets.empty()) {
    return;
  }
  std::span<int64_t> targets(batch.targets[0].mutable_data_ptr<int64_t>(),
                             static_cast<size_t>(batch.targets[0].numel()));
  for (const int64_t index : indices) {
    visit_files(index * sequence_length_ + 1, sequence_length_,
                [&](const MappedTokens& file, int64_t offset, int64_t count) {
                  file.ignore_targets(offset, targets.first(static_cast<size_t>(count)));
                  targets = targets.subspan(static_cast<size_t>(count));
                });
  }
}

void TokensDataset::refuse(const MappedTokens& file, int64_t position, int64_t token) const {
  throw InputError("data",
                   concat(file.path().string(), ": token ", position, " is ", token, ", the vocabulary has ",
                          vocab_size_, " (0 to ", vocab_size_ - 1, ')'),
                   concat("Raise the model's vocab_size or make the tokens with the right tokenizer.",
                          token_bytes_ == 4 ? " If these are 16-bit tokens, remove data.token_bytes." : ""));
}

void TokensDataset::check(Share share) const {
  if (vocab_size_ == 0) {
    return;
  }
  if (constexpr int64_t kMany = int64_t{1} << 30; num_tokens_ >= kMany) {
    log::info("comparing ", format_count(num_tokens_), " tokens with the vocabulary");
  }
  int64_t before = 0; // number of blocks in earlier files: shares of many small files are equal too
  for (const auto& file : files_) {
    if (file->file().vocab_size > 0) { // compared when it was opened
      continue;
    }
    const int64_t first = ((share.part - before) % share.parts + share.parts) % share.parts;
    for (int64_t block = first; block < file->num_blocks(); block += share.parts) {
      if (file->largest_in(block, block + share.parts) < vocab_size_) {
        continue;
      }
      std::vector<int64_t> part(1 << 16);
      const int64_t length = file->tokens_per_block();
      const int64_t end = std::min((block + 1) * length, file->num_tokens());
      for (int64_t start = block * length; start < end; start += std::ssize(part)) { // throws at the first one
        read(file->first_token() + start,
             std::span(part).first(static_cast<size_t>(std::min<int64_t>(std::ssize(part), end - start))));
      }
    }
    before += file->num_blocks();
  }
}

Batch TokensDataset::get(std::span<const int64_t> indices) const {
  return get_part(indices, Part::all);
}

Batch TokensDataset::get_part(std::span<const int64_t> indices, Part part) const {
  check_indices(indices, size_);
  Batch batch = gather_windows(
      indices, sequence_length_, [this](int64_t start, std::span<int64_t> out) { read(start, out); }, part);
  ignore_targets(indices, batch);
  if (pack_) {
    tell_documents_apart(indices, batch);
  }
  return batch;
}

std::string TokensDataset::describe() const {
  return concat("tokens: ", format_count(num_tokens_), " in ", format_count(size_), " samples of ", sequence_length_,
                " (", files_[0]->path().filename().string(),
                files_.size() == 1 ? "" : concat(" and ", files_.size() - 1, " more"), ')');
}

} // namespace trireme::data
