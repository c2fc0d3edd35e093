// SPDX-License-Identifier: Apache-2.0
//
// diffattn tokenize: learns a tokenizer from text and writes text as a token file.

#include <fmt/core.h>

#include <filesystem>

#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/data_warnings.h"
#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/terminal/progress_bar.h"
#include "apps/diffattn/terminal/stop_signal.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/data/corpus.h"
#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/io/tokenizer_training.h"

namespace diffattn::app {
namespace {

struct TokenizeArguments {
  std::string input, learn, tokenizer, out, pattern = "llama3";
  uint64_t vocab_size = 16384, min_frequency = 2;
  bool nfc = false, skip_bad = false, force = false, json = false;
};

/// The result of a run, for the text and the JSON output.
struct TokenizeResult {
  uint64_t vocab_size = 0, tokenizer_hash = 0;
  data::ReadReport text;  // of the token file
  uint64_t skipped = 0;   // bad lines
};

/// A progress bar that throws when a stop signal comes.
class StoppableBar {
 public:
  StoppableBar(const std::string& name, const std::string& input) : bar_(name), input_(input) {}

  void show(uint64_t done, uint64_t total) {
    if (signal_.received()) throw io::Error(input_, "stopped; nothing was written");
    bar_.show(done, total);
  }

 private:
  const StopSignal signal_;
  PercentBar bar_;
  const std::string& input_;
};

io::WordPattern pattern_from_name(const std::string& name) {
  if (name == "gpt2") return io::WordPattern::kGpt2;
  return name == "qwen2" ? io::WordPattern::kQwen2 : io::WordPattern::kLlama3;
}

void add_records(io::TokenizerTrainer& trainer, const std::string& file, bool skip_bad,
                 uint64_t& skipped) {
  io::JsonlReader reader(file, io::RecordKind::kText, skip_bad);
  for (io::Record record; reader.next(record);) trainer.add_text(record.text);
  skipped += reader.skipped();
}

io::Tokenizer learn_tokenizer(const TokenizeArguments& arguments, uint64_t& skipped) {
  io::TrainingOptions options;
  options.vocab_size = arguments.vocab_size;
  options.min_frequency = arguments.min_frequency;
  options.pattern = pattern_from_name(arguments.pattern);
  options.nfc = arguments.nfc;
  io::TokenizerTrainer trainer(options);
  const std::vector<std::string> files = data::text_files(arguments.input);
  uint64_t total = 0, before = 0;
  for (const std::string& file : files) total += std::filesystem::file_size(file);
  {
    StoppableBar bar("words", arguments.input);
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
  StoppableBar bar("merges", arguments.input);
  return trainer.train([&](const auto& progress) { bar.show(progress.done, progress.total); });
}

data::ReadReport write_tokens(const TokenizeArguments& arguments, const io::Tokenizer& tokenizer) {
  StoppableBar bar("tokens", arguments.input);
  data::ReadOptions options;
  options.skip_bad = arguments.skip_bad;
  options.progress = [&](const data::ReadReport& report) {
    bar.show(report.bytes, report.total_bytes);
  };
  return data::write_corpus(arguments.input, tokenizer, arguments.out, options);
}

/// Throws io::Error for an input or output file that would fail after an hour of work.
void check_files(const TokenizeArguments& arguments) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(arguments.input) && io::TokenFile::is_one(arguments.input)) {
    throw io::Error(arguments.input, "expected text, got a token file");
  }
  for (const std::string* file : {&arguments.learn, &arguments.out}) {
    if (file->empty()) continue;
    if (fs::exists(*file) && !arguments.force) {
      throw io::Error(*file, "expected a new file, got one that exists; --force replaces it");
    }
    const io::AtomicFile probe(*file);
  }
}

Json tokenize_json(const TokenizeResult& result, const TokenizeArguments& arguments) {
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

void print_tokenized(const TokenizeResult& result, const TokenizeArguments& arguments) {
  const bool learnt = !arguments.learn.empty();
  warn_of_skipped_lines(result.skipped);
  if (learnt) {
    print_out("{}: {} tokens in the vocabulary{}\n", arguments.learn, result.vocab_size,
              result.vocab_size < arguments.vocab_size
                  ? fmt::format(", fewer than {}: no other pair occurs {} times",
                                arguments.vocab_size, arguments.min_frequency)
                  : "");
  }
  if (arguments.out.empty()) return;
  print_out("{}: {} tokens, {} {}, {:.2f} bytes of text per token\n", arguments.out,
            result.text.tokens, result.text.documents,
            result.text.documents == 1 ? "document" : "documents",
            static_cast<double>(result.text.bytes) / static_cast<double>(result.text.tokens));
  print_out(
      "next:\n  diffattn train --set data.train={} --set data.tokenizer={} \\\n"
      "    --out runs/first\n",
      arguments.out, learnt ? arguments.learn : arguments.tokenizer);
}

int run_tokenize(const TokenizeArguments& arguments) {
  check_files(arguments);
  TokenizeResult result;
  const io::Tokenizer tokenizer =
      !arguments.learn.empty()         ? learn_tokenizer(arguments, result.skipped)
      : arguments.tokenizer == "bytes" ? io::Tokenizer::bytes()
                                       : io::Tokenizer::read(arguments.tokenizer);
  if (!arguments.learn.empty()) io::write_text(arguments.learn, tokenizer.to_json());
  result.vocab_size = tokenizer.vocab_size();
  result.tokenizer_hash = tokenizer.hash();
  if (!arguments.out.empty()) {
    result.text = write_tokens(arguments, tokenizer);
    result.skipped = result.text.skipped;
  }
  if (arguments.json) {
    print_json(tokenize_json(result, arguments));
  } else {
    print_tokenized(result, arguments);
  }
  return 0;
}

}  // namespace

VerbAction add_tokenize(CLI::App& app) {
  auto arguments = std::make_shared<TokenizeArguments>();
  auto* verb = app.add_subcommand("tokenize", "Learn a tokenizer and write text as a token file");
  verb->footer(
      "Example:\n  diffattn tokenize corpus/ --learn tokenizer.json --vocab-size 16384 \\\n"
      "    --out corpus.tokens");
  verb->add_option("input", arguments->input, "text file, JSONL file or folder of them")
      ->required();
  auto* learn = verb->add_option("--learn", arguments->learn,
                                 "tokenizer.json to write: byte-level BPE learnt from this text");
  auto* given =
      verb->add_option("--tokenizer", arguments->tokenizer, "tokenizer.json to use, or \"bytes\"");
  auto* out = verb->add_option("--out", arguments->out, "token file to write");
  learn->excludes(given);
  given->needs(out);
  for (auto* option :
       {verb->add_option("--vocab-size", arguments->vocab_size,
                         "tokens of the new tokenizer (default 16384)")
            ->check(integer_in(257, 1 << 24)),
        verb->add_option("--min-frequency", arguments->min_frequency,
                         "least count of a pair to merge (default 2)")
            ->check(integer_in(1, int64_t{1} << 40)),
        verb->add_option("--pattern", arguments->pattern,
                         "pattern that splits text into words (default llama3)")
            ->check(CLI::IsMember({"llama3", "gpt2", "qwen2"})),
        verb->add_flag("--nfc", arguments->nfc, "make the new tokenizer normalise text to NFC")}) {
    option->needs(learn);
  }
  verb->add_flag("--skip-bad", arguments->skip_bad, "skip and count bad lines of JSONL data");
  verb->add_flag("--force", arguments->force, "replace existing files");
  verb->add_flag("--json", arguments->json, "print one JSON object");
  verb->parse_complete_callback([arguments] {
    if (arguments->learn.empty() && arguments->tokenizer.empty()) {
      throw CLI::RequiredError("tokenize: expected --learn FILE or --tokenizer FILE, got neither",
                               CLI::ExitCodes::RequiredError);
    }
  });
  return [arguments] { return run_tokenize(*arguments); };
}

}  // namespace diffattn::app
