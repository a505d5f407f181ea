#include <trireme/config/verdict_letters.h>

#include <nlohmann/json.hpp>

// clang-format off: a line of the table is a line.
namespace trireme::config {
namespace {

const Key kShuffle = {"shuffle", H, "bool", "true", "A new order in every epoch. false: the order of the file."};
const Key kPrefetch = {"prefetch", H, "int >= 0", "2", "Micro-batches made ahead of time by a thread."};
const Key kSequence = {"sequence_length", H, "int >= 1", "null", "Tokens of one sample; must equal the model's, which is the default. A bert's may be smaller."};
const Key kDropout = {"dropout", H, "real 0..<1", "0", "Probability with which a value is set to zero while training."};

const Key kType = {"type", H, "text", "required", "\"gpt\", \"llama\", \"bert\", \"cnn\" or \"alexnet\"; not needed with \"from\"."};
const Key kFrom = {"from", H, "path", "null", "A Hugging Face folder: its config.json gives the other keys their defaults, its weights are init_from, its tokenizer.json is data.tokenizer. docs/models.md."};

const Key kAdapter = {"adapter", H, "path", "null", "A folder of Hugging Face's PEFT: adapters (LoRA) to begin with. Their rank, alpha, dropout and targets are training.lora. docs/fine_tuning.md."};

Section model_gpt() {
  return {"model", "gpt", "A GPT: pre-norm, learned positions, GELU.", false, {
    kType,
    kFrom,
    {"layers", H, "int >= 1", "4", "Transformer blocks."},
    {"hidden", H, "int >= 1", "128", "Width."},
    {"heads", H, "int >= 1", "4", "Attention heads; divides hidden."},
    {"sequence_length", H, "int >= 1", "128", "Tokens of one sample."},
    {"vocab_size", H, "int >= 1", "null", "Number of different tokens; without it the tokenizer's."},
    {"tie_embeddings", H, "bool", "true", "The output layer shares the embedding's weight."},
    kDropout,
    {"init_from", H, "path", "null", "Weights to start from, without optimizer states or step: safetensors with Hugging Face's GPT-2 names, or a run folder or checkpoint of Trireme."},
    kAdapter,
  }};
}

Section model_llama() {
  return {"model", "llama", "A Llama: pre-norm with RMSNorm, rotary positions, SwiGLU, grouped queries. Llama 2 and 3, SmolLM2, TinyLlama, Mistral, Qwen2, Qwen3: docs/models.md.", false, {
    kType,
    kFrom,
    {"layers", H, "int >= 1", "4", "Transformer blocks."},
    {"hidden", H, "int >= 1", "128", "Width."},
    {"heads", H, "int >= 1", "4", "Query heads."},
    {"kv_heads", H, "int >= 1", "null", "Heads of keys and values; divides heads. Without it as many as heads."},
    {"head_dim", H, "int >= 2", "null", "Width of a head, an even number; without it hidden / heads."},
    {"intermediate", H, "int >= 1", "null", "Width of the MLP; without it 8/3 of hidden, rounded up to a multiple of 64."},
    {"sequence_length", H, "int >= 1", "128", "Tokens of one sample; with \"from\" the smaller of its positions and 1024."},
    {"vocab_size", H, "int >= 1", "null", "Number of different tokens; without it the tokenizer's."},
    {"rope_theta", H, "real > 0", "10000", "Base of the rotary frequencies. Su et al. 2021, arXiv:2104.09864."},
    {"rope_scaling", H, "object", "null", "Stretches rotary positions, as config.json's."},
    {"max_positions", H, "int >= 1", "null", "config.json's max_position_embeddings, which scalings refer to; without it sequence_length."},
    {"rms_norm_eps", H, "real > 0", "1e-05", "Added to the mean square in RMSNorm."},
    {"attention_bias", H, "bool", "false", "Biases of queries, keys and values."},
    {"attention_output_bias", H, "bool", "false", "A bias of attention's output projection."},
    {"mlp_bias", H, "bool", "false", "Biases of the MLP."},
    {"qk_norm", H, "bool", "false", "RMSNorm of queries and keys in each head."},
    {"window", H, "int >= 0", "0", "Tokens that a token attends to, itself included; 0: all before it."},
    {"first_window_layer", H, "int >= 0", "0", "Layers before this one have no window."},
    {"tie_embeddings", H, "bool", "true", "The output layer shares the embedding's weight."},
    {"init_from", H, "path", "null", "Weights to start from, without optimizer states or step: a Hugging Face folder, safetensors with its names, or a run folder or checkpoint of Trireme."},
    kAdapter,
  }};
}

Section model_rope_scaling() {
  return {"model.rope_scaling", "", "Stretches rotary positions beyond the context of the original training. Names and formulas are those of config.json.", false, {
    {"rope_type", H, "word default|dynamic|linear|llama3|yarn", "\"default\"", "linear: positions divided by factor. dynamic: NTK-aware, for sequences beyond max_positions. llama3: as Llama 3.1. yarn: Peng et al. 2023, arXiv:2309.00071."},
    {"type", H, "word default|dynamic|linear|llama3|yarn", "null", "The older name of rope_type."},
    {"factor", H, "real >= 1", "", "How many times as many positions; needed by every type but default."},
    {"original_max_position_embeddings", H, "int >= 1", "null", "Positions of the original training; without it max_positions."},
    {"low_freq_factor", H, "real > 0", "1", "llama3: longer wavelengths are stretched by factor."},
    {"high_freq_factor", H, "real > 0", "4", "llama3: shorter wavelengths stay."},
    {"beta_fast", H, "real > 0", "32", "yarn: dims with more rotations than this stay."},
    {"beta_slow", H, "real > 0", "1", "yarn: dims with fewer rotations than this are stretched by factor."},
    {"attention_factor", H, "real > 0", "null", "yarn: multiplies cos and sin; without it 0.1 ln(factor) + 1."},
    {"mscale", H, "real > 0", "null", "yarn: with mscale_all_dim, instead of attention_factor."},
    {"mscale_all_dim", H, "real > 0", "null", "yarn: see mscale."},
    {"truncate", H, "bool", "true", "yarn: rounds the range between the two to whole dims."},
  }};
}

Section model_bert() {
  return {"model", "bert", "A BERT: post-norm, learned positions, GELU, every token attends to all. Devlin et al. 2018, arXiv:1810.04805. docs/models.md.", false, {
    kType,
    kFrom,
    {"layers", H, "int >= 1", "4", "Transformer blocks."},
    {"hidden", H, "int >= 1", "128", "Width."},
    {"heads", H, "int >= 1", "4", "Attention heads; divides hidden."},
    {"intermediate", H, "int >= 1", "null", "Width of the MLP; without it four times hidden."},
    {"sequence_length", H, "int >= 1", "128", "Most tokens of one sample: the model has as many positions."},
    {"vocab_size", H, "int >= 1", "null", "Number of different tokens, the mask token included; without it the tokenizer's, 257 for masked bytes."},
    {"segments", H, "int >= 1", "2", "Rows of the segment embedding; every token is of segment 0."},
    kDropout,
    {"layer_norm_eps", H, "real > 0", "1e-12", "Added to the variance in LayerNorm."},
    {"head", H, "word classes|masked_lm", "\"masked_lm\"", "masked_lm: predicts masked tokens of data of type text, tokens, jsonl or mixture; any token may be masked, whatever loss_on of the shards was. classes: predicts the label of data of type labelled_text."},
    {"classes", H, "int >= 2", "2", "classes: number of different labels."},
    {"mask_fraction", H, "real 0..<1", "0.15", "masked_lm: share of the tokens that are predicted, above 0. 80 % of them are replaced by mask_token, 10 % by a random token, 10 % stay."},
    {"mask_token", H, "int >= 0", "null", "masked_lm: id of the mask token; without it the tokenizer's \"[MASK]\" or \"<mask>\", 256 for \"bytes\"."},
    {"init_from", H, "path", "null", "Weights to start from, without optimizer states or step: a Hugging Face folder, safetensors with its names, or a run folder or checkpoint of Trireme. A missing classifier is random."},
    kAdapter,
  }};
}

Section model_cnn() {
  return {"model", "cnn", "A small convolutional classifier of images.", false, {
    kType,
    {"channels", H, "int >= 1", "1", "Channels of an image."},
    {"side", H, "int >= 4", "28", "Height and width of an image; a multiple of 4."},
    {"classes", H, "int >= 2", "10", "Number of different labels."},
    {"width", H, "int >= 1", "32", "Filters of the first convolution."},
    kDropout,
    {"init_from", H, "path", "null", "Weights to start from, without optimizer states or step: safetensors with this model's own names, or a run folder or checkpoint of Trireme."},
  }};
}

Section model_alexnet() {
  return {"model", "alexnet", "AlexNet, a convolutional classifier of images, with torchvision's layers and names. Krizhevsky 2014, arXiv:1404.5997.", false, {
    kType,
    {"channels", H, "int >= 1", "3", "Channels of an image."},
    {"classes", H, "int >= 2", "10", "Number of different labels."},
    {"resize", H, "int >= 0", "0", "Height and width to which images are enlarged, at least 63; 0: they are not, and must be that large. 64 is fast, 224 the original size."},
    {"hidden", H, "int >= 1", "4096", "Width of the two hidden layers of the classifier."},
    {"dropout", H, "real 0..<1", "0.5", "Probability with which a value is set to zero before each hidden layer of the classifier while training."},
    {"init_from", H, "path", "null", "Weights to start from, without optimizer states or step: safetensors with torchvision's names, or a run folder or checkpoint of Trireme."},
  }};
}

const Key kTokenFiles = {"train", H, "paths", "required", "Folders of token shards (trireme data tokenize), files of little-endian 16-bit tokens (nanoGPT's format) or 32-bit ones, or Megatron's .idx; several count as one. docs/data.md."};
const Key kTokenBytes = {"token_bytes", H, "int 2..4", "null", "Bytes of a token in raw files: 2 or 4, not 3. Without it 2, and files that do not look like 16-bit tokens are refused."};
const Key kTextFiles = {"train", H, "paths", "required", "Text files in UTF-8, plain or compressed (.gz); several count as one."};
const Key kTextFraction = {"validation_fraction", H, "real 0..<1", "0", "Without validation files: the last share of the text that is kept for the evaluations."};
const Key kValidation = {"validation", H, "paths", "null", "The same for the evaluations."};

const Key kSetType = {"type", H, "text", "required", "\"tokens\", \"text\" or \"jsonl\"."};
const Key kPackDocuments = {"pack", H, "bool", "false", "Keep the documents in a sample apart: no attention across them, positions that count from 0 in each, and no prediction of the next one's first token. Not for raw files of tokens."};
const Key kLineFiles = {"train", H, "paths", "required", "Files of JSON lines in UTF-8, plain or compressed (.gz): each line has text, messages, or prompt and response."};
const Key kLossOn = {"loss_on", H, "word response|all", "\"response\"", "What counts in the loss of prompts and conversations: what the model should say, or all tokens. \"all\" for a bert, which masks any token."};
const Key kChatTemplate = {"chat_template", H, "text", "null", "The template of conversations: a file (a path with a slash or .jinja, which starts at the run file's folder), or the name of one in the tokenizer's folder. Without it the default one of that folder."};
const Key kDataType = {"type", H, "text", "required", "\"tokens\", \"text\", \"jsonl\", \"labelled_text\", \"images\" or \"mixture\"."};

std::vector<Section> data() {
  return {
    {"data", "tokens", "Tokens, ready made.", false, {
      kDataType,
      kTokenFiles, kValidation, kTokenBytes,
      kPackDocuments,
      {"tokenizer", H, "path", "null", "How these tokens become text, for samples; without it that of the first folder of shards: \"bytes\", a tokenizer.json, a folder with one or with vocab.json and merges.txt, or these two: \"VOCAB.json,MERGES.txt\"."},
      kSequence, kShuffle, kPrefetch,
    }},
    {"data", "text", "Text files.", false, {
      kDataType,
      kTextFiles, kValidation, kTextFraction,
      {"tokenizer", H, "path", "\"bytes\"", "\"bytes\", a tokenizer.json, a folder with one or with vocab.json and merges.txt, or these two: \"VOCAB.json,MERGES.txt\"."},
      kSequence, kShuffle, kPrefetch,
    }},
    {"data", "jsonl", "Texts, conversations, and prompts with their responses in JSON lines: docs/data.md.", false, {
      kDataType,
      kLineFiles, kValidation, kLossOn, kChatTemplate,
      kPackDocuments,
      {"tokenizer", H, "path", "\"bytes\"", "\"bytes\", a tokenizer.json, a folder with one or with vocab.json and merges.txt, or these two: \"VOCAB.json,MERGES.txt\"."},
      kSequence, kShuffle, kPrefetch,
    }},
    {"data", "labelled_text", "Texts with a label each: lines of {\"text\": \"...\", \"label\": 0} or with a name as label.", false, {
      kDataType,
      {"train", H, "paths", "required", "Files of JSON lines in UTF-8, plain or compressed (.gz)."},
      {"validation", H, "paths", "null", "The same for the evaluations."},
      {"tokenizer", H, "path", "\"bytes\"", "\"bytes\", a tokenizer.json, a folder with one or with vocab.json and merges.txt, or these two: \"VOCAB.json,MERGES.txt\". Its special tokens are added."},
      {"sequence_length", H, "int >= 1", "null", "Longer texts are cut to this many tokens, shorter ones padded; at most the model's, which is the default."},
      kShuffle, kPrefetch,
    }},
    {"data", "images", "Images with labels in IDX files (MNIST's format), also compressed (.gz).", false, {
      kDataType,
      {"train", H, "paths", "required", "Files of images."},
      {"train_labels", H, "paths", "required", "One file of labels for each file of images."},
      {"validation", H, "paths", "null", "The same for the evaluations."},
      {"validation_labels", H, "paths", "null", "The same for the evaluations."},
      {"mean", H, "real", "0", "Subtracted from each pixel, which is in 0..1."},
      {"std", H, "real > 0", "1", "Each pixel is divided by it, after that."},
      kShuffle, kPrefetch,
    }},
    {"data", "mixture", "Samples of several sets in fixed shares, without end: docs/data.md.", false, {
      kDataType,
      {"sets", H, "objects", "required", "The sets, each with a weight."},
      {"tokenizer", H, "path", "null", "The tokenizer of all sets; without it that of the first folder of shards, else \"bytes\" for text. \"bytes\", a tokenizer.json, a folder with one or with vocab.json and merges.txt, or these two: \"VOCAB.json,MERGES.txt\"."},
      kSequence,
      {"shuffle", H, "bool", "true", "A new order each time a set is read. false: the order of its files."},
      kPrefetch,
    }},
    {"data.sets", "", "A set of a mixture.", false, {
      {"data", H, "object", "required", "Its files. Validation data of all sets is read one after the other."},
      {"weight", H, "real > 0", "required", "The set's share of all samples is its weight divided by the sum of all. A set that has been read to its end begins again."},
    }},
    {"data.sets.data", "tokens", "Tokens in a mixture.", false, {
      kSetType,
      kTokenFiles, kValidation, kTokenBytes,
    }},
    {"data.sets.data", "text", "Text files in a mixture.", false, {
      kSetType,
      kTextFiles, kValidation, kTextFraction,
    }},
    {"data.sets.data", "jsonl", "JSON lines in a mixture.", false, {
      kSetType,
      kLineFiles, kValidation, kLossOn, kChatTemplate,
    }},
  };
}

} // namespace

std::vector<Section> run_sections() {
  std::vector<Section> out = {
    {"", "", "A run file of \"trireme train\".", false, {
      {"model", H, "object", "required", "The model."},
      {"data", H, "object", "required", "The training data."},
      {"parallel", H, "object", "null", "How the ranks are used."},
      {"training", H, "object", "required", "How long, and what happens on the way."},
      {"engine", H, "object_or_path", "required", "A DeepSpeed configuration, or the path of a file that holds one."},
    }},
    model_gpt(),
    model_llama(),
    model_rope_scaling(),
    model_bert(),
    model_cnn(),
    model_alexnet(),
  };
  for (Section& section : data()) {
    out.push_back(std::move(section));
  }
  out.push_back({"parallel", "", "How the ranks are used: pipe x data x context x tensor of them. Ranks of a later axis are nearer to each other.", false, {
    {"pipe", H, "int 1..4096", "1", "Pipeline stages that the model's layers are spread over."},
    {"tensor", H, "int 1..4096", "1", "Ranks among which heads, MLPs and vocabulary of each layer are split. Shoeybi et al. 2019, arXiv:1909.08053. For a gpt, llama or bert."},
    {"context", H, "int 1..4096", "1", "Ranks among which the tokens of each sample are split. For a gpt, llama or bert with masked_lm."},
    {"sequence_parallel", H, "bool", "false", "Between the split layers each tensor rank has a part of the tokens, which saves activation memory. Korthikanti et al. 2022, arXiv:2205.05198."},
    {"context_kind", H, "word ring|ulysses", "\"ring\"", "How attention gets the tokens of other context ranks: keys and values circulate (ring), or each rank gets all tokens of some heads (ulysses)."},
    {"expert", L, "int >= 1", "1", "there is no mixture of experts."},
    {"data", H, "int|auto >= 1", "\"auto\"", "Data-parallel replicas; \"auto\": as many as there are ranks for."},
    {"sync", H, "object", "null", "How the data ranks agree on one model."},
    {"schedule", H, "word naive|gpipe|1f1b|interleaved|zero-bubble", "\"1f1b\"", "Order of the micro-batches in the pipeline: docs/schedules.md."},
    {"chunks", H, "int 1..4096", "null", "Parts of the model that each stage holds: more than 1 makes 1f1b interleaved, whose default is 2."},
  }});
  out.push_back({"parallel.sync", "", "How the data ranks agree on one model: by sums of gradients in every step, by averages of parameters every few steps (docs/parameter_averaging.md), or over parameter servers (docs/parameter_server.md).", false, {
    {"kind", H, "word all_reduce|server|local_sgd", "\"all_reduce\"", "all_reduce: gradients in every step. local_sgd: engine.parameter_averaging in short. server: the ranks are workers of parameter servers."},
    {"every", H, "int >= 1", "null", "local_sgd: steps between averaging steps; by default 50."},
    {"outer", H, "word nesterov|average", "null", "local_sgd: what is done with the mean; by default \"average\"."},
    {"elastic", H, "bool", "null", "local_sgd: a lost replica only changes the mean, and a joining one begins with the mean; by default false."},
    {"servers", H, "int 1..4096", "null", "server: processes that hold the parameters; by default 1."},
    {"mode", H, "word sync|async|stale|hybrid", "null", "server: which workers wait for others; by default \"sync\"."},
    {"staleness", H, "int >= 0", "null", "server, stale: steps that a worker may be ahead of the slowest; 0, the default, is sync."},
    {"timeout_s", H, "real > 0", "null", "server, hybrid: seconds that a step waits for workers after the first; by default 1."},
    {"snapshot_every", H, "int >= 0", "null", "server: updates between two snapshots that a server writes of its rows, to continue from after a restart; by default 100, 0: never."},
    {"transport", H, "word grpc|grpcs|tcp", "null", "server: protocol of servers and workers; grpc and grpcs (with TLS) for workers in other languages and encryption, slower (docs/grpc.md); by default \"tcp\"."},
    {"sparse_rows", H, "texts", "null", "server: regular expressions that match from the beginning of a parameter's name (transformer.wte). These parameters, usually embeddings, send and step only rows that have a gradient."},
  }});
  out.push_back({"training", "", "How long, and what happens on the way.", false, {
    {"steps", H, "int >= 1", "required", "Optimizer steps of the whole run."},
    {"seed", H, "int >= 0", "1234", "Decides initial weights, order of the data and dropout."},
    {"device", H, "text", "\"auto\"", "Device of the ranks: \"cpu\", \"cuda\" (each rank the GPU with its number on the host), \"cuda:0\" (this one), or \"auto\": cuda where there are GPUs, else cpu."},
    {"tf32", H, "bool", "true", "On GPUs with tensor cores: products of fp32 in TF32, with 10 bits of mantissa; false: in full fp32, 5 to 8 times as slow."},
    {"cuda_graph", H, "bool|auto", "\"auto\"", "On one GPU, with true: a step is recorded as two CUDA graphs, and replayed with two launches. A run where that is not possible is refused. \"auto\": off, until a GPU has run it. Numbers do not change."},
    {"eval_every", H, "int >= 0", "0", "Steps between two evaluations; 0: only at the end."},
    {"eval_batches", H, "int >= 0", "0", "Micro-batches of each rank in one evaluation; 0: all validation data."},
    {"checkpoint_every", H, "int >= 0", "0", "Steps between two checkpoints; 0: only at the end."},
    {"keep_checkpoints", H, "int >= 0", "3", "Older checkpoints than these are removed; 0: none is."},
    {"sample", H, "object", "null", "A text that the model writes at the end."},
    {"freeze", H, "texts", "[]", "Regular expressions: parameters whose name in checkpoints contains a match are not trained. docs/fine_tuning.md."},
    {"lora", H, "object", "null", "Trains low-rank adapters (LoRA) of a gpt, llama or bert instead of its weights, and a new classifier. docs/fine_tuning.md."},
    {"export", H, "path", "null", "Hugging Face folder that is written from the last checkpoint at the end: trireme export. A relative path starts at the working directory."},
  }});
  out.push_back({"training.lora", "", "Low-rank adapters of linear layers, which are trained instead of the model's weights. Hu et al. 2021, arXiv:2106.09685.", false, {
    {"rank", H, "int 1..65536", "8", "Rank of the adapters: rows of A, columns of B."},
    {"alpha", H, "real > 0", "16", "An adapter's result is multiplied by alpha / rank."},
    {"dropout", H, "real 0..<1", "0", "Probability with which a value of an adapter's input is set to zero while training."},
    {"targets", H, "texts", "null", "Regular expressions: linear layers of the blocks whose name contains a match have adapters. By default q_proj and v_proj of a llama, query and value of a bert, c_attn of a gpt."},
  }});
  out.push_back({"training.sample", "", "A text that the model writes at the end.", false, {
    {"prompt", H, "text", "\"\"", "Its beginning."},
    {"tokens", H, "int >= 1", "200", "Its length after the prompt."},
    {"temperature", H, "real >= 0", "0.8", "0, or less than 1e-30: always the most likely token."},
    {"top_k", H, "int >= 0", "0", "Choose among this many most likely tokens; 0: among all."},
  }});
  return out;
}

} // namespace trireme::config
