#include <trireme/data/tokenize/line_encoder.h>

#include <trireme/base/error.h>
#include <trireme/data/tokenize/counted_text.h>
#include <trireme/tokenizer/tokenizer_files.h>

#include <utility>

namespace trireme::data {

const chat::ChatTemplate& LineEncoder::chat_template() const {
  const std::lock_guard lock(mutex_);
  if (!template_) {
    const auto files = tokenizer::tokenizer_files(tokenizer_name_);
    template_ = files.empty() ? std::nullopt : chat::read_chat_template(files.front().path.parent_path());
  }
  if (!template_) {
    throw InputError("data",
                     concat("the tokenizer ", tokenizer_name_, " has no chat template, which \"messages\" needs"),
                     "Put the model's chat_template.jinja into the tokenizer's folder.");
  }
  return *template_;
}

EncodedLine LineEncoder::encode(JsonLine line) const {
  EncodedLine encoded;
  if (line.fields == LineFields::text) {
    encoded.ids = tokenizer_.encode(line.text);
    encoded.text_bytes = std::ssize(line.text);
    return encoded;
  }
  CountedText text;
  if (line.fields == LineFields::messages) {
    text = render_conversation(chat_template(), line.messages, line.tools);
    encoded.has_end = true;
  } else {
    text.text = std::move(line.text);
    text.counted = {{line.response_begin, text.text.size()}};
  }
  encoded.ids = tokenizer_.encode(text.text);
  encoded.counted = find_counted(text, encoded.ids, tokenizer_);
  encoded.text_bytes = std::ssize(text.text);
  return encoded;
}

EncodedLine LineEncoder::encode(std::string_view line, const std::string& where) const {
  JsonLine read = read_json_line(line, options_, where);
  try {
    return encode(std::move(read));
  } catch (const InputError& error) { // of the template or the tokenizer, which know no line
    const std::string what = error.what();
    const size_t part = what.starts_with('[') ? what.find("] ") : std::string::npos;
    throw InputError("data", concat(where, ": ", part == std::string::npos ? what : what.substr(part + 2)));
  }
}

} // namespace trireme::data
