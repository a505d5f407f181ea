#include <trireme/data/fetch_sets.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/data/fetch_rdata.h>
#include <trireme/data/gzip.h>

#include <algorithm>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFileBytes = size_t{256} << 20;

// "NORTHANGER ABBEY" -> "northanger-abbey": only characters that are safe in a path.
std::string file_stem(const std::vector<std::string>& lines, size_t number) {
  const auto title = std::find_if(lines.begin(), lines.end(), [](const std::string& line) { return !line.empty(); });
  std::string stem;
  for (const char c : title == lines.end() ? std::string() : title->substr(0, 60)) {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      stem += c;
    } else if (c >= 'A' && c <= 'Z') {
      stem += static_cast<char>(c - 'A' + 'a');
    } else if (!stem.empty() && stem.back() != '-') {
      stem += '-';
    }
  }
  while (!stem.empty() && stem.back() == '-') {
    stem.pop_back();
  }
  return stem.empty() ? concat("novel-", number) : stem;
}

// The beginning of the last tenth, moved to the next paragraph (or the next line if there is none).
size_t held_out_start(const std::string& text) {
  const size_t nine_tenths = text.size() - text.size() / 10;
  const size_t blank_line = text.find("\n\n", nine_tenths);
  if (blank_line != std::string::npos) {
    const size_t start = text.find_first_not_of('\n', blank_line);
    return start == std::string::npos ? text.size() : start;
  }
  const size_t line = text.find('\n', nine_tenths);
  return line == std::string::npos ? text.size() : line + 1;
}

std::string as_uint16(const std::string& text) {
  std::string tokens;
  tokens.reserve(2 * text.size());
  for (const char c : text) {
    tokens += c;
    tokens += '\0';
  }
  return tokens;
}

std::vector<FileContent> make_fashion_mnist(const std::vector<fs::path>& sources) {
  std::vector<FileContent> files;
  for (const fs::path& source : sources) {
    std::string content = read_file(source);
    if (is_gzip(content)) {
      content = gunzip(content, kMostFileBytes, source.string());
    }
    files.emplace_back((source.extension() == ".gz" ? source.stem() : source.filename()).string(), std::move(content));
  }
  return files;
}

} // namespace

std::vector<FileContent> make_austen(const std::vector<fs::path>& sources) {
  const fs::path& database = sources.at(0);
  std::vector<FileContent> files;
  std::string train;
  std::string validation;
  for (const std::vector<std::string>& lines : read_rdb(read_file(database), database.string())) {
    std::string text;
    for (const std::string& line : lines) {
      text += line;
      text += '\n';
    }
    const size_t start = held_out_start(text);
    train.append(text, 0, start);
    validation.append(text, start);
    std::string name = file_stem(lines, files.size() + 1);
    const auto taken = [&](const FileContent& file) { return file.first == name + ".txt"; };
    if (name == "train" || name == "validation" || std::any_of(files.begin(), files.end(), taken)) {
      name += concat('-', files.size() + 1);
    }
    files.emplace_back(name + ".txt", std::move(text));
  }
  files.emplace_back("train.bin", as_uint16(train));
  files.emplace_back("validation.bin", as_uint16(validation));
  files.emplace_back("train.txt", std::move(train));
  files.emplace_back("validation.txt", std::move(validation));
  return files;
}

// Hashes of Debian 12's packages r-cran-janeaustenr 1.0.0-1 and dataset-fashion-mnist
// 0.0~git20200523.55506a9-1. They are of the unpacked content, so a package that was only compressed anew still
// matches.
const std::vector<FetchSet>& fetch_sets() {
  static const std::vector<FetchSet> sets = {
      {{"austen", "r-cran-janeaustenr", "the six novels of Jane Austen, 4.0 MB of plain text"},
       {"Rdata.rdb"},
       "usr/lib/R/site-library/janeaustenr/data",
       make_austen,
       {{"emma.txt", 883028, "7c67b5985c6d0de1efaeb5d342d52cb82c38083c40e2295129e30e87ee690ebe"},
        {"mansfield-park.txt", 883280, "98bc90519cdf4ef663ad7de2734bb529435ef24f7abbde6bb1a50898871dafe9"},
        {"northanger-abbey.txt", 433411, "51f91bbe0517db8e65cff009b097ce0a1836124c4e0532ac19e6c0cad982abed"},
        {"persuasion.txt", 466854, "8061549557aebd2fd6e353d18d9197cb707029112bd52d4d8b174583a925848a"},
        {"pride-and-prejudice.txt", 684768, "dfc684d4f857fa938268f9ab9c5567b64bd0691251eca959644adeabe6287a4d"},
        {"sense-and-sensibility.txt", 673688, "105e1651fe93bed7130078578efd31e0c557d68667ba672ddc876f735b30fe09"},
        {"train.txt", 3635776, "504283781bd834577026d75a1b90ad7cae8bccb95c57e26432089bbbf04bc456"},
        {"validation.txt", 389253, "1571837db41f688d4d39ca1ba1db5e7e410100e755016bebe892cc8e59ce9283"},
        {"train.bin", 7271552, "631acdf08aa755eb580d3d4f94f0a93694f27400b21d314076c38120ed764254"},
        {"validation.bin", 778506, "fd8bf862d4a663139048a869b8d2c1a029dcc850cab6b88ed700f064cd9480fe"}}},
      {{"fashion-mnist", "dataset-fashion-mnist", "Fashion-MNIST, 70000 grey 28x28 images in 10 classes"},
       {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz"},
       "usr/share/datasets/fashion-mnist",
       make_fashion_mnist,
       {{"train-images-idx3-ubyte", 47040016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"},
        {"train-labels-idx1-ubyte", 60008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"},
        {"t10k-images-idx3-ubyte", 7840016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"},
        {"t10k-labels-idx1-ubyte", 10008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"}}},
  };
  return sets;
}

} // namespace trireme::data
