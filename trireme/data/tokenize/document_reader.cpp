#include <trireme/data/tokenize/document_reader.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>
#include <trireme/data/tokenize/json_line.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytesOfALine = size_t{32} << 20;
constexpr size_t kPieceOfLines = size_t{256} << 10;

bool has_json_lines(fs::path path) {
  const auto ending_of = [](const fs::path& file) {
    std::string ending = file.extension().string();
    std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return ending;
  };
  if (ending_of(path) == ".gz") {
    path.replace_extension();
  }
  const std::string kind = ending_of(path);
  if (kind == ".json" || kind == ".parquet" || kind == ".arrow") {
    throw InputError("data", concat(path.string(), ": ", kind, " files are not read"),
                     kind == ".json" ? "If each of its lines is an object, name it .jsonl; text is .txt."
                                     : "Write its texts as JSON lines: one {\"text\": \"...\"} a line, named .jsonl.");
  }
  return kind == ".jsonl" || kind == ".ndjson";
}

} // namespace

DocumentReader::DocumentReader(const fs::path& path, JsonLineOptions lines)
    : source_(path.string()), lines_(std::move(lines)), file_(path), json_lines_(has_json_lines(path)) {}

bool DocumentReader::next(DocumentPiece& piece, size_t bytes) {
  piece = {};
  if (!json_lines_) {
    return next_piece(piece, bytes);
  }
  std::string line;
  while (next_line(line)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    if (line.size() > bytes) {
      JsonLine read = read_json_line(line, lines_, concat(source_, ':', line_));
      if (read.fields == LineFields::text) {
        piece = {std::move(read.text), true, true};
        return true;
      }
    }
    piece = {std::move(line), true, true, line_};
    return true;
  }
  return false;
}

// Reads one piece ahead, to know which is the last.
bool DocumentReader::next_piece(DocumentPiece& piece, size_t bytes) {
  if (ended_) {
    return false;
  }
  piece.begins = !std::exchange(begun_, true);
  if (piece.begins) {
    file_.read(buffer_, bytes);
  }
  piece.text = std::exchange(buffer_, {});
  ended_ = piece.ends = !file_.read(buffer_, bytes);
  return true;
}

bool DocumentReader::next_line(std::string& line) {
  ++line_;
  size_t searched = at_;
  for (;;) {
    const size_t end = buffer_.find('\n', searched);
    if (end != std::string::npos) {
      line.assign(buffer_, at_, end - at_);
      at_ = end + 1;
      return true;
    }
    buffer_.erase(0, std::exchange(at_, 0));
    searched = buffer_.size();
    if (searched > kMostBytesOfALine) {
      throw InputError("data",
                       concat(source_, ':', line_, ": the line is longer than ", format_bytes(kMostBytesOfALine)),
                       "Write the text into a file of its own, which may have any size.");
    }
    if (!file_.read(buffer_, kPieceOfLines)) {
      line = std::exchange(buffer_, {});
      return !line.empty();
    }
  }
}

} // namespace trireme::data
