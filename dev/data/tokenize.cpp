// tokenize: turns text into token shards, or into ids and back. The lesson is how a corpus of any
// size is processed in little memory.
//
// One thread reads the files and cuts them into blocks (documents.h). All cores encode blocks
// (ordered_workers.h, encode_block.h). The first thread writes their tokens in the order of the
// text (shards.h). Each document begins with <|endoftext|>.
#include <optional>
#include "dev/data/corpus.h"
#include "dev/data/ordered_workers.h"
#include "llmc/base/default_files.h"
#include "llmc/options/options.h"
#include "llmc/base/program.h"

// ---- flags

struct Settings {
    std::vector<std::string> texts;
    std::optional<std::string> prefix, tokenizer, val_split, split_on, jsonl;
    double val_fraction = 0.1;
    int64_t shard_tokens = 0, seed = 42, threads = 0;
    int64_t train_vocab = 0, bytes = 0, pack = 0;
    bool ids = false, decode = false, help = false;
};

struct Flag {
    const char *name, *accepted, *fallback, *meaning;
    std::optional<std::string> Settings::*text = nullptr;  // where the value goes: one of these four
    int64_t Settings::*whole = nullptr;
    double Settings::*real = nullptr;
    bool Settings::*sign = nullptr;
    int64_t lowest = 0, highest = 0;
};

static const std::vector<Flag>& flag_table() {
    using S = Settings;
    auto text = [](const char* name, const char* accepted, const char* fallback, const char* meaning, auto member) {
        return Flag{name, accepted, fallback, meaning, member};
    };
    auto whole = [](const char* name, const char* accepted, const char* fallback, const char* meaning, auto member,
                    int64_t low, int64_t high) {
        return Flag{name, accepted, fallback, meaning, nullptr, member, nullptr, nullptr, low, high};
    };
    auto sign = [](const char* name, const char* meaning, auto member) {
        return Flag{name, "", "", meaning, nullptr, nullptr, nullptr, member};
    };
    static const std::vector<Flag> table = {
        text("-o", "PREFIX", "", "writes PREFIX_train.bin and PREFIX_val.bin", &S::prefix),
        whole("--shard-tokens", "1..2147483647", "all in one file",
              "writes PREFIX_train_000000.bin, PREFIX_train_000001.bin, ... of so many tokens, and PREFIX_val_*.bin "
              "likewise; 100000000 is usual",
              &S::shard_tokens, 1, INT32_MAX),
        text("--split-on", "LINE", "none",
             "a line equal to this stands between two documents of a text; without it each text is one", &S::split_on),
        text(
            "--jsonl", "FIELD", "text",
            "the field that holds the document, in the JSON object on each line of a .jsonl file; when given, stdin "
            "and named files that do not end in .txt are read as .jsonl too. Where it is not given and \"text\" is not "
            "there, \"prompt\" and \"completion\" hold the document; each shard X.bin then has a loss mask X.mask "
            "beside it (the trainers' --loss-mask), in which the completions count, and the end of text behind them, "
            "but not the prompts. The two are encoded apart, with nothing between them: a completion usually begins "
            "with a space. Or \"messages\" hold a conversation, [{\"role\": \"user\", \"content\": ...}, ...], or "
            "\"instruction\", \"input\" and \"output\" two turns of one: each turn becomes <|ROLE|>, a new line, the "
            "text, <|end|> and a new line, and the turns of the assistant count",
            &S::jsonl),
        whole("--pack", "0, 2..", "0",
              "begins a document at the next multiple of so many tokens, the trainers' -t, if it fits there and not "
              "where it would begin: so windows cut only what is longer. What is left over is padding, which does not "
              "count: --loss-mask is needed",
              &S::pack, 0, INT32_MAX),
        {"--val-fraction", "0..1", "0.1", "of the tokens, for validation", nullptr, nullptr, &S::val_fraction},
        text("--val-split", "documents, tails, tail",
             "documents with .jsonl, --split-on or 100 files and more; tails with several files; else tail",
             "what validates: documents drawn by --seed, each with the chance --val-fraction; the last bytes of each "
             "file; or the last tokens of all, which with several files are of the last ones alone",
             &S::val_split),
        whole("--seed", "0..", "42", "of the draw", &S::seed, 0, INT64_MAX),
        whole("--threads", "1..4096", "all cores", "that encode; the result is the same for any number", &S::threads, 1,
              4096),
        text("--tokenizer", "FILE", "dev/data/gpt2_tokenizer.bin", "the vocabulary", &S::tokenizer),
        whole("--train-vocab", "257..65535", "none",
              "learns a vocabulary of so many tokens from the training split, writes PREFIX_tokenizer.bin and encodes "
              "with it; the texts are read twice, so none is stdin; tail is then the last bytes of the texts",
              &S::train_vocab, 257, 65535),
        whole("--bytes", "0, 1", "0", "1: every byte is a token, as with --train-vocab 257", &S::bytes, 0, 1),
        sign("--ids", "reads bytes on stdin, prints token ids", &S::ids),
        sign("--decode", "reads token ids on stdin, writes bytes", &S::decode),
        sign("--help", "print this and stop", &S::help),
    };
    return table;
}

// Prints words in lines of at most 100 columns, from the given column on.
static void print_wrapped(const std::string& text, int column) {
    int at = column;
    for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
        end = std::min(text.find(' ', begin), text.size());
        const int word = (int)(end - begin);
        if (at > column && at + 1 + word > 100) printf("\n%*s", column, ""), at = column;
        at += printf(at > column ? " %.*s" : "%.*s", word, text.c_str() + begin);
    }
    printf("\n");
}

static void print_usage() {
    printf(
        "usage: tokenize TEXT... -o PREFIX [flags]      each flag as `--name value` or `--name=value`\n"
        "       tokenize --train-vocab N TEXT... -o PREFIX [flags]\n"
        "       tokenize --ids | --decode\n\n");
    for (const char* line :
         {"TEXT is a file of UTF-8 text, a .jsonl file, a folder (its .txt and .jsonl files and those of the folders "
          "in it, sorted by path) or - for stdin. Empty documents are left out. A file with a zero byte, or of which "
          "more than one byte in a hundred is not UTF-8, is refused; fewer such bytes are kept as they are, with a "
          "warning.",
          "No file appears under its name before all are written. Exit status: 0; 1 for a file that cannot be read or "
          "written; 2 for a mistake in a flag."})
        print_wrapped(line, 0);
    for (const Flag& flag : flag_table()) {
        printf("%s  %-16s ", &flag == &flag_table()[0] ? "\n" : "", flag.name);
        print_wrapped(flag.meaning, 19);
        const std::string fallback = *flag.fallback ? format("; default: %s", flag.fallback) : "";
        if (*flag.accepted) printf("%19s", ""), print_wrapped(format("accepted: %s", flag.accepted) + fallback, 19);
    }
}

static void set_flag(Settings& settings, const Flag& flag, const std::string& value) {
    bool good = true;
    if (flag.text) settings.*flag.text = value;
    if (flag.whole) {
        int64_t& n = settings.*flag.whole;
        good = !value.empty() && parse_whole(value, n) && n >= flag.lowest && n <= flag.highest;
    }
    if (flag.real) {
        double& x = settings.*flag.real;
        good = parse_real(value, x) && x >= 0 && x <= 1;
    }
    if (!good) usage_error("%s %s: %s is accepted", flag.name, value, flag.accepted);
}

static Settings parse_flags(int argc, char** argv) {
    Settings settings;
    for (int i = 1; i < argc; i++) {
        std::string name = argv[i];
        if (name == "-" || name[0] != '-') {
            settings.texts.push_back(name);
            continue;
        }
        std::optional<std::string> value;
        const size_t equals = name.rfind("--", 0) == 0 ? name.find('=') : name.npos;
        if (equals != name.npos) value = name.substr(equals + 1), name.resize(equals);
        if (name == "-h") name = "--help";
        const Flag* flag = nullptr;
        for (const Flag& candidate : flag_table())
            if (name == candidate.name) flag = &candidate;
        if (!flag) usage_error("unknown flag %s; --help lists what is accepted", argv[i]);
        if (flag->sign) {
            if (value) usage_error("%s: this flag takes no value", argv[i]);
            settings.*flag->sign = true;
            continue;
        }
        if (!value && i + 1 == argc) usage_error("%s needs a value; accepted: %s", name, flag->accepted);
        set_flag(settings, *flag, value ? *value : argv[++i]);
    }
    return settings;
}

static void check_settings(const Settings& s) {
    const char* mode = s.ids ? "--ids" : "--decode";
    if (s.ids && s.decode) usage_error("--ids and --decode were both given; one of them is accepted");
    if ((s.ids || s.decode) && !s.texts.empty())
        usage_error("%s reads stdin; no file names are accepted beside it (got %s)", mode, s.texts[0]);
    if ((s.ids || s.decode) && (s.bytes || s.train_vocab))
        usage_error("%s uses a vocabulary and %s makes one; --tokenizer FILE is accepted", mode,
                    s.bytes ? "--bytes" : "--train-vocab");
    if (s.ids || s.decode) return;
    if (s.texts.empty()) usage_error("no text files given; tokenize TEXT... -o PREFIX is accepted (--help shows more)");
    if (!s.prefix || s.prefix->empty()) usage_error("-o is missing; it gives the prefix of the files to write");
    if (s.val_split && *s.val_split != "documents" && *s.val_split != "tails" && *s.val_split != "tail")
        usage_error("--val-split %s: documents, tails and tail are accepted", s.val_split->c_str());
    if (s.bytes && s.train_vocab && s.train_vocab != 257)
        usage_error("--bytes 1 is a vocabulary of 257 tokens; --train-vocab %d is not accepted beside it",
                    s.train_vocab);
    if ((s.bytes || s.train_vocab) && s.tokenizer)
        usage_error("--tokenizer names a vocabulary and %s makes one; one of the two is accepted",
                    s.bytes ? "--bytes 1" : "--train-vocab");
    if (s.pack == 1) usage_error("--pack 1: the tokens of a window are accepted, the -t of the training");
    if (s.pack && s.shard_tokens % s.pack)
        usage_error("--shard-tokens %d is no multiple of --pack %d; a multiple is accepted", s.shard_tokens, s.pack);
    if (s.split_on && s.split_on->find('\n') != std::string::npos)
        usage_error("--split-on: a text of one line is accepted");
}

// ---- text to ids and back

static std::string read_stdin() {
    std::string text;
    char buffer[1 << 16];
    for (size_t n; (n = fread(buffer, 1, sizeof(buffer), stdin)) > 0;) text.append(buffer, n);
    if (ferror(stdin)) runtime_failure("cannot read stdin: %s", strerror(errno));
    return text;
}

static void print_ids(const Tokenizer& tok) {
    std::vector<int> ids;
    encode(tok, read_stdin(), ids);
    for (size_t i = 0; i < ids.size(); i++) printf(i ? " %d" : "%d", ids[i]);
    printf("\n");
}

static void decode_ids(const Tokenizer& tok) {
    std::string text = read_stdin();
    const char* p = text.c_str();
    const char* end = p + text.size();
    for (int64_t place = 1;; place++) {
        while (p < end && strchr(" \t\r\n", *p) && *p) p++;
        if (p == end) break;
        char* after;
        errno = 0;
        long id = strtol(p, &after, 10);
        bool whole = after != p && (after == end || (*after && strchr(" \t\r\n", *after)));
        if (!whole || errno || id < 0 || id >= tok.vocab_size())
            runtime_failure("stdin: entry %d is no token id; 0 to %d separated by spaces are accepted", place,
                            tok.vocab_size() - 1);
        std::string_view bytes = decode(tok, (int)id);
        fwrite(bytes.data(), 1, bytes.size(), stdout);
        p = after;
    }
}

// ---- a corpus

static bool makes_vocabulary(const Settings& s) { return s.bytes || s.train_vocab; }
static bool learns_tokens(const Settings& s) { return s.train_vocab > 257; }
static std::string vocabulary_path(const Settings& s) { return *s.prefix + "_tokenizer.bin"; }

// The trainers find the vocabulary beside the shards by its name (llmc/base/default_files.h). Exit
// 2 if one is there that did not make these tokens, or if GPT-2's would be overwritten.
static void check_vocabulary_beside(const Settings& s) {
    const std::string beside = vocabulary_path(s), gpt2 = default_file("dev/data/gpt2_tokenizer.bin");
    std::error_code unknown;
    auto is_beside = [&](const std::string& path) { return std::filesystem::equivalent(beside, path, unknown); };
    if (!file_exists(beside)) return;
    if (makes_vocabulary(s) && is_beside(gpt2))
        usage_error("-o %s: %s is GPT-2's vocabulary; another prefix is accepted", s.prefix->c_str(), beside);
    if (!makes_vocabulary(s) && !is_beside(s.tokenizer ? *s.tokenizer : gpt2))
        usage_error(
            "-o %s: the vocabulary of earlier shards is there (%s); it is accepted as --tokenizer, or another "
            "prefix, or this one when it is removed",
            s.prefix->c_str(), beside);
}

static void configure(Corpus& corpus, const Settings& s, bool many, int64_t all_bytes) {
    if (s.jsonl) corpus.fields = {*s.jsonl, false};
    corpus.by_documents = s.val_split ? *s.val_split == "documents" : many;
    corpus.by_files = s.val_split ? *s.val_split == "tails" : !many && corpus.files.size() > 1 && all_bytes >= 0;
    corpus.val_fraction = s.val_fraction, corpus.seed = s.seed;
    corpus.window = s.pack;
    if (s.pack && !corpus.by_documents && s.val_fraction > 0)
        usage_error("--pack cuts no document, and the tail may; --val-split documents or --val-fraction 0 is accepted");
    corpus.train.prefix = *s.prefix + "_train", corpus.val.prefix = *s.prefix + "_val";
    corpus.train.limit = corpus.val.limit = s.shard_tokens;
    if (learns_tokens(s) && !corpus.by_documents && !corpus.by_files)
        corpus.tail_begin = all_bytes - std::llround((double)all_bytes * s.val_fraction);
}

// Reads the training split and learns the vocabulary that --train-vocab asks for. tok has the
// tokens of single bytes, and gets the vocabulary.
static void learn_vocabulary(Tokenizer& tok, const std::vector<TextFile>& files, const Settings& s, bool many,
                             int64_t all_bytes) {
    WordCounts words;
    Corpus corpus(files, all_bytes, "counting words");
    configure(corpus, s, many, all_bytes);
    DocumentReader reader(tok, files, s.split_on ? &*s.split_on : nullptr);
    corpus.count_words(tok, reader, words);
    if (words.words.empty() && corpus.documents > 0)
        usage_error("--val-fraction %g leaves no text to train the vocabulary on; a smaller one is accepted",
                    s.val_fraction);
    if (words.words.empty()) return;  // there is no text at all: said where it is encoded
    train_vocabulary(tok, words, s.train_vocab, corpus.logger, stop_if_asked);
    corpus.logger.clear_line_in_work();
    if (tok.vocab_size() < s.train_vocab)
        usage_error(
            "--train-vocab %d: after %d tokens no two parts of a word are left to merge; 257 to %d are "
            "accepted for this text",
            s.train_vocab, tok.vocab_size(), tok.vocab_size());
}

static void tokenize_corpus(Tokenizer& tok, const Settings& s) {
    constexpr size_t MANY_FILES = 100;
    const std::vector<TextFile> files = find_texts(s.texts, s.jsonl.has_value());
    bool many = s.split_on.has_value() || files.size() >= MANY_FILES;
    int64_t all_bytes = 0;
    for (const TextFile& file : files) {
        many = many || file.jsonl;
        all_bytes = file.bytes < 0 || all_bytes < 0 ? -1 : all_bytes + file.bytes;
    }
    if (learns_tokens(s) && all_bytes < 0)
        usage_error("--train-vocab reads the texts twice, which stdin does not allow; files and folders are accepted");
    if (s.val_split == "tails" && all_bytes < 0)
        usage_error(
            "--val-split tails begins where --val-fraction of a file's bytes are left, and those of stdin are "
            "not known; documents and tail are accepted");
    if (s.shard_tokens) refuse_earlier_shards(*s.prefix);
    check_vocabulary_beside(s);
    if (learns_tokens(s)) learn_vocabulary(tok, files, s, many, all_bytes);
    make_folder(folder_of(*s.prefix));
    remove_unpublished_at_exit();
    Corpus corpus(files, all_bytes, "tokenizing");
    configure(corpus, s, many, all_bytes);
    corpus.end_of_text = (uint32_t)tok.end_of_text;
    corpus.train.layout = corpus.val.layout = token_layout(tok.vocab_size());
    if (makes_vocabulary(s)) {
        corpus.vocabulary = std::make_unique<FileWriter>(vocabulary_path(s));
        unpublished_files().push_back(corpus.vocabulary->temporary);
        tokenizer_write(tok, *corpus.vocabulary);
        corpus.vocabulary->flush();
    }

    const int64_t threads = s.threads ? s.threads : std::max(1u, std::thread::hardware_concurrency());
    DocumentReader reader(tok, files, s.split_on ? &*s.split_on : nullptr);
    auto work = [&](Encoded& e) { encode_block(tok, files[e.block.file].jsonl, corpus.fields, e); };
    OrderedWorkers<Encoded> workers(threads, work);
    size_t under_way = 0;  // bytes given to the workers; four blocks a thread keep them busy
    for (bool more = true; more || !workers.empty();) {
        Encoded next;
        if (more && under_way < threads * 4 * BLOCK_BYTES && (more = reader.next(next.block))) {
            under_way += next.block.text.size();
            next.train_bytes = corpus.train_bytes(next.block);
            workers.push(std::move(next));
        } else if (!workers.empty()) {
            const Encoded done = workers.pop();
            under_way -= done.block.text.size();
            corpus.take(done);
        }
        stop_if_asked();
    }
    corpus.finish();
    if (makes_vocabulary(s)) printf("vocabulary: %d tokens in %s\n", tok.vocab_size(), vocabulary_path(s).c_str());
}

static int tokenize(int argc, char** argv) {
    const Settings settings = parse_flags(argc, argv);
    if (settings.help) return print_usage(), 0;
    check_settings(settings);
    Tokenizer tok;
    if (makes_vocabulary(settings)) set_vocabulary(tok, byte_tokens());
    else tokenizer_load(tok, settings.tokenizer ? *settings.tokenizer : default_file("dev/data/gpt2_tokenizer.bin"));
    if (settings.ids) return print_ids(tok), 0;
    if (settings.decode) return decode_ids(tok), 0;
    struct sigaction action = {};
    action.sa_handler = [](int number) { stop_signal = number; };
    action.sa_flags = (int)SA_RESETHAND;  // the second one ends the program at once; none restarts a read
    for (int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &action, nullptr);
    signal(SIGXFSZ, SIG_IGN);  // a file over the limit is an error of write(), reported as one
    tokenize_corpus(tok, settings);
    return 0;
}

int main(int argc, char** argv) {
    return run_program([&] { return tokenize(argc, argv); });
}
