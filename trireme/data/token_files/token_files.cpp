#include <trireme/data/token_files/token_files.h>

#include <trireme/base/error.h>
#include <trireme/data/token_files/shard_format.h>
#include <trireme/data/token_files/shard_index.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

// "" for what cannot be read.
std::string head_of(const fs::path& path) {
  std::array<char, 16> head{};
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) { // opening a pipe would wait
    return "";
  }
  std::ifstream in(path, std::ios::binary);
  in.read(head.data(), head.size());
  return {head.data(), static_cast<size_t>(in.gcount())};
}

// Whatever its index.json is.
bool has_shards(const fs::path& folder) {
  std::error_code ignored;
  const fs::directory_iterator files(folder, ignored);
  return std::any_of(begin(files), end(files), [](const fs::directory_entry& file) {
    return file.path().extension() == ".bin" && is_shard(head_of(file.path()));
  });
}

TokenFile open_raw(const fs::path& path) {
  TokenFile file;
  file.path = path;
  file.map = std::make_shared<FileMap>(path);
  return file;
}

TokenFile open_shard(const fs::path& path) {
  TokenFile file = open_raw(path);
  const ShardHeader header = read_shard_header(file.map->bytes(), path);
  file.kind = TokenFile::Kind::shard;
  file.begin = kShardHeaderBytes;
  file.token_bytes = header.token_bytes;
  file.num_tokens = header.num_tokens;
  file.vocab_size = header.vocab_size;
  file.tokenizer_hash = header.tokenizer_hash;
  file.checksum = header.checksum;
  file.counted_tokens = header.counted_tokens;
  file.mask = header.counted_tokens ? file.map->bytes().data() + header.mask_offset() : nullptr;
  file.num_documents = header.num_documents;
  file.table = file.map->bytes().data() + header.documents_offset();
  return file;
}

TokenFile open_megatron(const fs::path& index_path) {
  const fs::path path = fs::path(index_path).replace_extension(".bin");
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    refuse_token_file(index_path, concat("there is no ", path.filename().string(), " beside it"),
                      "Megatron's pair of files is needed.");
  }
  auto index_map = std::make_shared<FileMap>(index_path);
  const MegatronIndex index = read_megatron_index(index_map->bytes(), index_path);
  TokenFile file = open_raw(path);
  file.kind = TokenFile::Kind::megatron;
  file.token_bytes = index.token_bytes;
  file.num_tokens = index.num_tokens;
  file.num_documents = index.num_documents;
  file.index_map = std::move(index_map);
  file.index = index;
  const auto expected = static_cast<uint64_t>(index.num_tokens * index.token_bytes);
  if (file.map->bytes().size() != expected) {
    refuse_token_file(path,
                      concat("it is ", file.map->bytes().size(), " bytes long and ", index_path.filename().string(),
                             " says ", expected),
                      "Copy both files again; they belong together.");
  }
  return file;
}

void open_folder(const fs::path& folder, std::vector<TokenFile>& files) {
  const ShardIndex index = ShardIndex::read(folder);
  for (const ShardIndex::Shard& shard : index.shards) {
    const fs::path path = folder / shard.file;
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      refuse_token_file(path, concat("it is missing, and ", kShardIndexName, " names it"),
                        "Copy the folder again, or make it again with \"trireme data tokenize\".");
    }
    if (!is_shard(head_of(path))) {
      refuse_token_file(path, "it is not a token shard", "Copy the folder again.");
    }
    TokenFile file = open_shard(path);
    if (file.num_tokens != shard.tokens || file.num_documents != shard.documents || file.checksum != shard.checksum ||
        file.tokenizer_hash != index.tokenizer_hash) {
      refuse_token_file(path, concat("it is not the shard that ", kShardIndexName, " describes"),
                        "The folder has files of two runs of \"trireme data tokenize\"; copy it again.");
    }
    files.push_back(std::move(file));
  }
}

void compare(const std::vector<TokenFile>& files, int64_t token_bytes) {
  const TokenFile* width_of = nullptr; // the first file of each
  const TokenFile* tokenizer_of = nullptr;
  const auto width = [&](const TokenFile& file) {
    return file.token_bytes > 0 ? file.token_bytes : token_bytes > 0 ? token_bytes : 2;
  };
  for (const TokenFile& file : files) {
    if (token_bytes != 0 && width(file) != token_bytes) {
      throw InputError("data",
                       concat("data.token_bytes is ", token_bytes, ", and ", file.path.string(), " has tokens of ",
                              width(file), " bytes"),
                       "Remove data.token_bytes.");
    }
    width_of = width_of == nullptr ? &file : width_of;
    if (width(file) != width(*width_of)) {
      throw InputError("data",
                       concat(width_of->path.string(), " has tokens of ", width(*width_of), " bytes, ",
                              file.path.string(), " of ", width(file)),
                       "All files of one list need tokens of the same size: were they made with the same tokenizer?");
    }
    if (file.tokenizer_hash == 0) {
      continue;
    }
    tokenizer_of = tokenizer_of == nullptr ? &file : tokenizer_of;
    if (file.tokenizer_hash != tokenizer_of->tokenizer_hash) {
      throw InputError(
          "data",
          concat(tokenizer_of->path.string(), " and ", file.path.string(), " were made with different tokenizers"),
          "Make one of them again with the other's tokenizer.");
    }
  }
}

} // namespace

int64_t TokenFile::document_start(int64_t number) const {
  return kind == Kind::megatron ? index.document_start(number)
                                : static_cast<int64_t>(read_u64(table + static_cast<size_t>(number) * 8));
}

fs::path megatron_index_of(const fs::path& path) {
  if (path.extension() == ".idx") {
    return path;
  }
  const fs::path beside = fs::path(path).replace_extension(".idx");
  return path.extension() == ".bin" && is_megatron_index(head_of(beside)) ? beside : fs::path();
}

std::vector<TokenFile> open_token_files(const std::vector<fs::path>& paths, int64_t token_bytes) {
  std::vector<TokenFile> files;
  for (const fs::path& path : paths) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
      open_folder(path, files);
    } else if (is_shard(head_of(path))) {
      files.push_back(open_shard(path));
    } else if (const fs::path index = megatron_index_of(path); !index.empty()) {
      files.push_back(open_megatron(index));
    } else {
      files.push_back(open_raw(path));
    }
  }
  compare(files, token_bytes);
  return files;
}

bool is_token_data(const fs::path& path) {
  return is_shard_folder(path) || has_shards(path) || is_shard(head_of(path)) ||
         (!megatron_index_of(path).empty() && is_megatron_index(head_of(megatron_index_of(path))));
}

} // namespace trireme::data
