// SPDX-License-Identifier: Apache-2.0
//
// diffattn tokenize: learns a tokenizer from text, and writes text as a token file.

#include <fmt/core.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "diffattn/data/corpus.h"
#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/io/tokenizer_training.h"
#include "train/stop_signal.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/progress.h"
#include "apps/diffattn/verbs.h"

namespace diffattn::app {
namespace {

using Json = nlohmann::ordered_json;

struct TokenizeArguments {
  std::string input, learn, tokenizer, out, pattern = "llama3";
  std::uint64_t vocab_size = 16384, min_frequency = 2;
  bool nfc = false, skip_bad = false, force = false, json = false;
};

/// What was done, for people and as JSON.
struct Tokenized {
  std::uint64_t vocab_size = 0, tokenizer_hash = 0;
  data::ReadReport text;  // of the token file
  std::uint64_t skipped = 0;
};

/// A bar of work that a signal stops.
class Work {
 public:
  Work(const std::string& name, const std::string& input) : bar_(name), input_(input) {}

  void show(std::uint64_t done, std::uint64_t total) {
    if (signal_.received() != 0) throw io::Error(input_, "stopped; nothing was written");
    bar_.show(done, total);
  }

 private:
  const train::StopSignal signal_;
  PercentBar bar_;
  const std::string& input_;
};

io::WordPattern pattern_from_name(const std::string& name) {
  if (name == "gpt2") return io::WordPattern::kGpt2;
  return name == "qwen2" ? io::WordPattern::kQwen2 : io::WordPattern::kLlama3;
}

void add_records(io::TokenizerTrainer& trainer, const std::string& file, bool skip_bad,
                 std::uint64_t& skipped) {
  io::JsonlReader reader(file, io::RecordKind::kText, skip_bad);
  for (io::Record record; reader.next(record);) trainer.add_text(record.text);
  skipped += reader.skipped();
}

io::Tokenizer learn(const TokenizeArguments& arguments, std::uint64_t& skipped) {
  io::TrainingOptions options;
  options.vocab_size = arguments.vocab_size;
  options.min_frequency = arguments.min_frequency;
  options.pattern = pattern_from_name(arguments.pattern);
  options.nfc = arguments.nfc;
  io::TokenizerTrainer trainer(options);
  const std::vector<std::string> files = data::text_files(arguments.input);
  std::uint64_t total = 0, before = 0;
  for (const std::string& file : files) total += std::filesystem::file_size(file);
  {
    Work bar("words", arguments.input);
    for (const std::string& file : files) {
      if (file.ends_with(".jsonl")) {
        add_records(trainer, file, arguments.skip_bad, skipped);
      } else {
        trainer.add_file(file,
                         [&](const auto& progress) { bar.show(before + progress.done, total); });
      }
      before += std::filesystem::file_size(file);
      bar.show(before, total);
    }
  }
  if (total == 0) throw io::Error(arguments.input, "expected text, got none");
  Work bar("merges", arguments.input);
  return trainer.train([&](const auto& progress) { bar.show(progress.done, progress.total); });
}

data::ReadReport write(const TokenizeArguments& arguments, const io::Tokenizer& tokenizer) {
  Work bar("tokens", arguments.input);
  data::ReadOptions options;
  options.skip_bad = arguments.skip_bad;
  options.progress = [&](const data::ReadReport& report) {
    bar.show(report.bytes, report.total_bytes);
  };
  return data::write_corpus(arguments.input, tokenizer, arguments.out, options);
}

/// Mistakes that are known before an hour of work.
void check_files(const TokenizeArguments& arguments) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(arguments.input) && io::TokenFile::is_one(arguments.input)) {
    throw io::Error(arguments.input, "expected text, got a token file");
  }
  for (const std::string* file : {&arguments.learn, &arguments.out}) {
    if (file->empty()) continue;
    if (fs::exists(*file) && !arguments.force) {
      throw io::Error(*file, "expected a new name, got a file that exists; --force replaces it");
    }
    const io::AtomicFile probe(*file);
  }
}

Json tokenize_json(const Tokenized& result, const TokenizeArguments& arguments) {
  const std::string& tokenizer = arguments.learn.empty() ? arguments.tokenizer : arguments.learn;
  Json json{{"input", arguments.input},
            {"tokenizer", tokenizer},
            {"learnt", !arguments.learn.empty()},
            {"vocab_size", result.vocab_size},
            {"tokenizer_hash", result.tokenizer_hash},
            {"skipped_lines", result.skipped},
            {"token_file", nullptr}};
  if (!arguments.out.empty()) {
    json["token_file"] = arguments.out;
    json["files"] = result.text.files;
    json["bytes"] = result.text.bytes;
    json["documents"] = result.text.documents;
    json["tokens"] = result.text.tokens;
  }
  return json;
}

void print_tokenized(const Tokenized& result, const TokenizeArguments& arguments) {
  const bool learnt = !arguments.learn.empty();
  if (result.skipped > 0) fmt::print(stderr, "diffattn: bad lines skipped: {}\n", result.skipped);
  if (learnt) {
    fmt::print("{}: {} tokens in the vocabulary{}\n", arguments.learn, result.vocab_size,
               result.vocab_size < arguments.vocab_size
                   ? fmt::format(", not {}: no further pair comes {} times", arguments.vocab_size,
                                 arguments.min_frequency)
                   : "");
  }
  if (arguments.out.empty()) return;
  fmt::print("{}: tokens {}, documents {}, bytes of text a token {:.2f}\n", arguments.out,
             result.text.tokens, result.text.documents,
             static_cast<double>(result.text.bytes) / static_cast<double>(result.text.tokens));
  fmt::print("next: diffattn train --set data.train={} --set data.tokenizer={} --out runs/first\n",
             arguments.out, learnt ? arguments.learn : arguments.tokenizer);
}

int run_tokenize(const TokenizeArguments& arguments) {
  check_files(arguments);
  Tokenized result;
  const io::Tokenizer tokenizer = !arguments.learn.empty() ? learn(arguments, result.skipped)
                                  : arguments.tokenizer == "bytes"
                                      ? io::Tokenizer::bytes()
                                      : io::Tokenizer::read(arguments.tokenizer);
  if (!arguments.learn.empty()) io::write_text(arguments.learn, tokenizer.to_json());
  result.vocab_size = tokenizer.vocab_size();
  result.tokenizer_hash = tokenizer.hash();
  if (!arguments.out.empty()) {
    result.text = write(arguments, tokenizer);
    result.skipped = result.text.skipped;
  }
  if (arguments.json) {
    fmt::print(
        "{}\n",
        tokenize_json(result, arguments).dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print_tokenized(result, arguments);
  }
  return 0;
}

}  // namespace

Run add_tokenize(CLI::App& app) {
  auto arguments = std::make_shared<TokenizeArguments>();
  auto* verb = app.add_subcommand("tokenize", "Learn a tokenizer, write text as a token file");
  verb->footer(
      "Example:\n  diffattn tokenize corpus/ --learn tokenizer.json --vocab-size 16384 --out "
      "corpus.tokens");
  verb->add_option("input", arguments->input, "text file, JSONL file or folder")->required();
  auto* learn = verb->add_option("--learn", arguments->learn,
                                 "tokenizer.json to make: byte-level BPE of this text");
  auto* given =
      verb->add_option("--tokenizer", arguments->tokenizer, "tokenizer.json to use, or bytes");
  auto* out = verb->add_option("--out", arguments->out, "token file to write");
  learn->excludes(given);
  given->needs(out);
  for (auto* option :
       {verb->add_option("--vocab-size", arguments->vocab_size, "of the new tokenizer (16384)")
            ->check(integer_in(257, 1 << 24)),
        verb->add_option("--min-frequency", arguments->min_frequency, "of a pair to merge (2)")
            ->check(integer_in(1, int64_t{1} << 40)),
        verb->add_option("--pattern", arguments->pattern,
                         "how text is cut into words: llama3, gpt2 or qwen2 (llama3)")
            ->check(CLI::IsMember({"llama3", "gpt2", "qwen2"})),
        verb->add_flag("--nfc", arguments->nfc, "the new tokenizer composes characters first")}) {
    option->needs(learn);
  }
  verb->add_flag("--skip-bad", arguments->skip_bad, "count bad lines of JSONL instead of stopping");
  verb->add_flag("--force", arguments->force, "replace files that exist");
  verb->add_flag("--json", arguments->json, "one JSON object on standard output");
  verb->parse_complete_callback([arguments] {
    if (arguments->learn.empty() && arguments->tokenizer.empty()) {
      throw CLI::RequiredError("tokenize: expected --learn FILE or --tokenizer FILE, got neither",
                               CLI::ExitCodes::RequiredError);
    }
  });
  return [arguments] { return run_tokenize(*arguments); };
}

}  // namespace diffattn::app
