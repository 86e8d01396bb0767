// tokenize: text to token shards, and text to ids and back.
//
//     tokenize TEXT... -o PREFIX [--val-fraction 0.1]   writes PREFIX_train.bin and PREFIX_val.bin
//     tokenize --ids                                    bytes on stdin to ids on stdout
//     tokenize --decode                                 ids on stdin to bytes on stdout
//
// Each file is one document and gets <|endoftext|> before it. The last val-fraction of all tokens is for validation.
#include <cmath>
#include "llmc/tokenizer.h"
#include "llmc/tokens_file.h"

static const char* USAGE =
    "usage: tokenize TEXT... -o PREFIX [--val-fraction 0.1] [--tokenizer dev/data/gpt2_tokenizer.bin]\n"
    "       tokenize --ids      reads bytes on stdin, prints token ids\n"
    "       tokenize --decode   reads token ids on stdin, writes bytes\n";

static std::string read_stream(FILE* stream, const char* name) {
    std::string text;
    char buffer[1 << 16];
    for (size_t n; (n = fread(buffer, 1, sizeof(buffer), stream)) > 0;) text.append(buffer, n);
    if (ferror(stream)) runtime_failure("cannot read %s: %s", name, strerror(errno));
    return text;
}

static void finish_stdout() {
    if (fflush(stdout) != 0 || ferror(stdout)) runtime_failure("cannot write to stdout: %s", strerror(errno));
}

static void print_ids(const Tokenizer& tok) {
    std::vector<int> ids;
    encode(tok, read_stream(stdin, "stdin"), ids);
    for (size_t i = 0; i < ids.size(); i++) printf(i ? " %d" : "%d", ids[i]);
    printf("\n");
    finish_stdout();
}

static void decode_ids(const Tokenizer& tok) {
    std::string text = read_stream(stdin, "stdin");
    const char* p = text.c_str();
    const char* end = p + text.size();
    for (int64_t place = 1;; place++) {
        while (p < end && strchr(" \t\r\n", *p) && *p) p++;
        if (p == end) break;
        char* after;
        errno = 0;
        long id = strtol(p, &after, 10);
        bool whole = after != p && (after == end || (*after && strchr(" \t\r\n", *after)));
        if (!whole || errno || id < 0 || id >= tok.vocab_size()) runtime_failure("stdin: entry %lld is no token id; 0 to %d separated by spaces are accepted", (long long)place, tok.vocab_size() - 1);
        std::string_view bytes = decode(tok, (int)id);
        fwrite(bytes.data(), 1, bytes.size(), stdout);
        p = after;
    }
    finish_stdout();
}

static void write_shards(const Tokenizer& tok, const std::vector<std::string>& texts, const std::string& prefix, double val_fraction) {
    std::vector<uint16_t> tokens;
    std::vector<int> ids;
    for (const std::string& path : texts) {
        FileReader file(path);
        std::string text(file.size_bytes, '\0');
        file.read(text.data(), text.size(), "the text");
        ids.assign(1, tok.end_of_text);
        encode(tok, text, ids);
        tokens.insert(tokens.end(), ids.begin(), ids.end());
    }
    int64_t val_tokens = (int64_t)std::llround(tokens.size() * val_fraction), train_tokens = tokens.size() - val_tokens;
    make_folder(folder_of(prefix));
    write_tokens(prefix + "_train.bin", tokens.data(), train_tokens);
    write_tokens(prefix + "_val.bin", tokens.data() + train_tokens, val_tokens);
    printf("%zu files, %zu tokens: %lld in %s_train.bin, %lld in %s_val.bin\n", texts.size(), tokens.size(), (long long)train_tokens, prefix.c_str(), (long long)val_tokens, prefix.c_str());
    finish_stdout();
}

int main(int argc, char** argv) {
    std::vector<std::string> texts;
    std::string prefix, tokenizer_path = "dev/data/gpt2_tokenizer.bin", mode;
    double val_fraction = 0.1;
    for (int i = 1; i < argc; i++) {
        std::string arg = argv[i], value;
        size_t equals = arg.find('=');
        bool takes_value = false;
        for (const char* name : {"-o", "--val-fraction", "--tokenizer"}) takes_value |= arg.substr(0, arg[1] == '-' ? equals : arg.npos) == name;
        if (takes_value && arg[1] == '-' && equals != arg.npos) value = arg.substr(equals + 1), arg.resize(equals);
        else if (takes_value && ++i < argc) value = argv[i];
        else if (takes_value) usage_error("%s needs a value\n%s", arg.c_str(), USAGE);
        if (arg == "-h" || arg == "--help") return fputs(USAGE, stdout), 0;
        else if (arg == "-o") prefix = value;
        else if (arg == "--tokenizer") tokenizer_path = value;
        else if (arg == "--val-fraction") {
            char* end;
            val_fraction = strtod(value.c_str(), &end);
            if (value.empty() || *end || !(val_fraction >= 0 && val_fraction <= 1)) usage_error("--val-fraction %s: a number from 0 to 1 is accepted", value.c_str());
        } else if (arg == "--ids" || arg == "--decode") mode = arg;
        else if (arg.size() > 1 && arg[0] == '-') usage_error("unknown flag %s; -o, --val-fraction, --tokenizer, --ids and --decode are accepted", arg.c_str());
        else texts.push_back(arg);
    }
    if (mode.empty() && texts.empty()) usage_error("no text files given; tokenize TEXT... -o PREFIX is accepted (--help shows more)");
    if (mode.empty() && prefix.empty()) usage_error("-o is missing; it gives the prefix of the two files to write");
    if (!mode.empty() && !texts.empty()) usage_error("%s reads stdin; no file names are accepted beside it (got %s)", mode.c_str(), texts[0].c_str());
    Tokenizer tok;
    tokenizer_load(tok, tokenizer_path);
    if (mode == "--ids") print_ids(tok);
    else if (mode == "--decode") decode_ids(tok);
    else write_shards(tok, texts, prefix, val_fraction);
    return 0;
}
