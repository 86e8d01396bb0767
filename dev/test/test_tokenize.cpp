// `tokenize` as its users run it: what it takes, what it refuses, and that the tokens are those of
// the whole text, however it was cut, split into files and shared out among threads.
#include <sys/stat.h>
#include <csignal>
#include <filesystem>
#include "dev/test/run_program.h"
#include "llmc/json_text.h"
#include "llmc/tokenizer.h"

static const int EOT = 50256;
static Tokenizer tok;

static uint64_t text_state = 88172645463325252u;
static uint64_t random_below(uint64_t n) {
    text_state ^= text_state << 13, text_state ^= text_state >> 7, text_state ^= text_state << 17;
    return text_state % n;
}

static std::vector<int> document(const std::string& text) {
    std::vector<int> ids{EOT};
    encode(tok, text, ids);
    return ids;
}
static std::vector<int> documents(const std::vector<std::string>& texts) {
    std::vector<int> ids;
    for (const std::string& text : texts) {
        const std::vector<int> more = document(text);
        ids.insert(ids.end(), more.begin(), more.end());
    }
    return ids;
}
// The tokens of a shard; none, which no test expects, if it is not a whole one.
static std::vector<int> shard(const std::string& path) {
    const std::string bytes = read_whole(path);
    std::vector<int> ids;
    if (bytes.size() < 1024 || bytes.size() % 2) return ids;
    int32_t header[3];
    memcpy(header, bytes.data(), sizeof(header));
    if (header[0] != TOKENS_MAGIC || header[1] != 1 || header[2] != (int)(bytes.size() - 1024) / 2) return ids;
    for (size_t at = 1024; at < bytes.size(); at += 2)
        ids.push_back((unsigned char)bytes[at] | (unsigned char)bytes[at + 1] << 8);
    return ids;
}
// All that a run wrote, training tokens first.
static std::vector<int> written(const std::string& prefix) {
    std::vector<int> ids = shard(prefix + "_train.bin"), val = shard(prefix + "_val.bin");
    ids.insert(ids.end(), val.begin(), val.end());
    return ids;
}
static Outcome tokenize(const std::string& flags) { return run("./tokenize " + flags); }
static bool good(const Outcome& r) {
    if (r.status != 0) printf("    status %d: %s\n", r.status, r.err.substr(0, 300).c_str());
    return r.status == 0;
}
static std::vector<std::string> names_in(const std::string& path) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}
static std::string fresh_folder(const std::string& name) {
    std::filesystem::remove_all(dir(name));
    std::filesystem::create_directories(dir(name));
    return dir(name);
}
// Words, white space and punctuation of the kinds that the tokenizer's pattern tells apart, at
// random.
static std::string random_text(size_t pieces) {
    static const std::vector<std::string> parts = {"'s",
                                                   "'ll",
                                                   " ",
                                                   "  ",
                                                   "\n",
                                                   "\r\n",
                                                   "\t",
                                                   "a",
                                                   "bc",
                                                   "don't",
                                                   "5",
                                                   "42",
                                                   "\xc3\xa9",
                                                   "\xe4\xb8\xad\xe6\x96\x87",
                                                   "\xe3\x80\x82",
                                                   "\xc2\xa0",
                                                   "\xe2\x80\xa8",
                                                   "\xf0\x9f\x98\x80",
                                                   "!",
                                                   "...",
                                                   "'",
                                                   "word",
                                                   "\xcc\x81"};
    std::string text;
    for (size_t i = 0; i < pieces; i++) text += parts[random_below(parts.size())];
    return text;
}

static void cutting() {
    start_test("a text cut at last_cut, wherever it is looked for, encodes as the whole");
    int cuts = 0;
    for (int round = 0; round < 60; round++) {
        const std::string text = random_text(60);
        std::vector<int> whole;
        encode(tok, text, whole);
        for (size_t end = 1; end < text.size(); end++) {
            const size_t cut = last_cut(tok, std::string_view(text).substr(0, end));
            if (cut == 0) continue;
            std::vector<int> parts;
            encode(tok, std::string_view(text).substr(0, cut), parts);
            encode(tok, std::string_view(text).substr(cut), parts);
            cuts++;
            EXPECT(parts == whole);
        }
    }
    EXPECT(cuts > 1000);
    start_test("no cut where bytes are not UTF-8, in white space or before 's");
    for (const char* text : {"\xff\xff\xff", "a", "'s", "   ", "\n\n", "abc", "\xc3"}) EXPECT(last_cut(tok, text) == 0);
}

static void streaming() {
    start_test("a long text passes through in blocks: same tokens, for any number of threads");
    const std::string text = random_text(400000);
    write_whole(dir("long.txt"), text);
    const std::vector<int> want = document(text);
    for (const char* threads : {"1", "2", "7"}) {
        EXPECT(good(tokenize(dir("long.txt") + " -o " + dir("long") + " --threads " + threads)));
        EXPECT(written(dir("long")) == want);
    }
    EXPECT(shard(dir("long_val.bin")).size() == (size_t)std::llround(0.1 * (double)want.size()));
    start_test("stdin is a text");
    EXPECT(good(run("sh -c './tokenize - -o " + dir("piped") + " < " + dir("long.txt") + "'")));
    EXPECT(written(dir("piped")) == want);
    start_test("a long text passes through little memory");
    FILE* big = fopen(dir("big.txt").c_str(), "wb");
    for (size_t bytes = 0; bytes < 60 << 20; bytes += text.size()) fwrite(text.data(), 1, text.size(), big);
    fclose(big);
    const Outcome r = tokenize(dir("big.txt") + " -o " + dir("big") + " --threads 2");
    if (!EXPECT(good(r) && r.peak_mib < 50)) printf("    peak %.1f MiB\n", r.peak_mib);
    unlink(dir("big.txt").c_str());
    start_test("what has no place to cut in 16 MiB is refused");
    write_whole(dir("big.txt"), std::string(17 << 20, 'x'));
    EXPECT(refused(tokenize(dir("big.txt") + " -o " + dir("uncut")), 1, "big.txt"));
    unlink(dir("big.txt").c_str());
}

static void sources() {
    start_test("folders: .txt and .jsonl, recursively, sorted by path; what is left out is said");
    const std::string in = fresh_folder("in");
    std::filesystem::create_directories(in + "/b/deep");
    write_whole(in + "/c.txt", "third");
    write_whole(in + "/a.txt", "first");
    write_whole(in + "/b/deep/x.jsonl", "{\"text\": \"second\"}\n");
    write_whole(in + "/notes.md", "not this");
    Outcome r = tokenize(in + " -o " + dir("folder") + " --val-split tail");
    EXPECT(good(r) && contains(r.err, "1 file whose name") && contains(r.err, "notes.md") && one_line(r.err));
    EXPECT(r.out.rfind("3 files, 3 documents, ", 0) == 0);
    EXPECT(written(dir("folder")) == documents({"first", "second", "third"}));
    EXPECT(refused(tokenize(fresh_folder("none") + " -o " + dir("folder")), 1, "none"));
    start_test("empty files are left out with a word; nothing but empty files is refused");
    write_whole(dir("empty.txt"), "");
    r = tokenize(in + "/a.txt " + dir("empty.txt") + " " + in + "/c.txt -o " + dir("folder"));
    EXPECT(good(r) && contains(r.err, "empty.txt") && written(dir("folder")) == documents({"first", "third"}));
    EXPECT(tokenize(dir("empty.txt") + " -o " + dir("nothing")).status == 1 &&
           read_whole(dir("nothing_train.bin")).empty());
    start_test("what is no UTF-8 text is refused, and nothing is written");
    for (const std::string& bytes : {std::string("a few words\0and more", 20), read_whole("./tokenize"),
                                     std::string("caf\xe9 cr\xe8me"), read_whole(dir("val.bin"))}) {
        write_whole(dir("binary.txt"), bytes);
        EXPECT(refused(tokenize(in + "/a.txt " + dir("binary.txt") + " -o " + dir("refused")), 1, "binary.txt"));
        EXPECT(!file_exists(dir("refused_train.bin")) && !file_exists(dir("refused_train.bin.tmp")));
    }
    start_test("a few bytes that are not UTF-8 are kept, with a word");
    std::string text = random_text(3000);
    text.insert(text.find(' ') + 1, "\xe9");
    write_whole(dir("few.txt"), text);
    r = tokenize(dir("few.txt") + " -o " + dir("few"));
    EXPECT(good(r) && one_line(r.err) && contains(r.err, "few.txt has 1 byte of") &&
           written(dir("few")) == document(text));
}

static void separators() {
    start_test("--split-on: a line equal to the text separates documents");
    auto split = [&](const std::string& text, const std::string& flags) {
        write_whole(dir("many.txt"), text);
        return good(tokenize(dir("many.txt") + " -o " + dir("many") + " --val-split tail " + flags));
    };
    EXPECT(split("one\n---\ntwo\nlines\n---\n", "--split-on ---") &&
           written(dir("many")) == documents({"one\n", "two\nlines\n"}));
    EXPECT(split("---\r\n---\r\na --- b\n ---\n---x\n---\r\nlast", "--split-on=---"));
    EXPECT(written(dir("many")) == documents({"a --- b\n ---\n---x\n", "last"}));
    EXPECT(split("verse\n\nverse\n", "--split-on ''") && written(dir("many")) == documents({"verse\n", "verse\n"}));
    EXPECT(split("one\n---", "--split-on ---") && written(dir("many")) == documents({"one\n"}));
    start_test("--split-on: documents of all lengths, across the borders of blocks");
    std::vector<std::string> texts;
    std::string all;
    for (int i = 0; i < 400; i++) {
        texts.push_back(random_text(random_below(i % 50 == 0 ? 100000 : 300)) + "x\n");
        all += (i ? "\n5\n" : "") + texts.back();
    }
    std::vector<std::string> want;  // random texts hold lines of a 5, too
    for (size_t at = 0, begin = 0; at < all.size();) {
        const size_t newline = std::min(all.find('\n', at), all.size());
        std::string line = all.substr(at, newline - at);
        if (!line.empty() && line.back() == '\r') line.pop_back();
        const size_t next = std::min(newline + 1, all.size());
        if (line == "5" || next == all.size()) {
            const size_t end = line == "5" ? at : all.size();
            if (end > begin) want.push_back(all.substr(begin, end - begin));
            begin = next;
        }
        at = next;
    }
    EXPECT(want.size() >= 400 && split(all, "--split-on 5 --threads 3") && written(dir("many")) == documents(want));
}

static void json_lines() {
    start_test(".jsonl: escapes, surrogate pairs, other fields of any kind, blank lines");
    write_whole(dir("a.jsonl"),
                "{\"text\": \"a\\n\\\"b\\\" \\u00e9\\uD83D\\ude00\\/\", \"n\": [1, -2.5e+3, {\"text\": null}]}\n"
                "\n {\"id\":{},\"x\":[],\"text\":\"\xc3\xa9t\xc3\xa9\"} \r\n{\"te\\u0078t\": \"last\", \"z\": true}");
    EXPECT(good(tokenize(dir("a.jsonl") + " -o " + dir("json") + " --val-split tail")));
    EXPECT(written(dir("json")) == documents({"a\n\"b\" \xc3\xa9\xf0\x9f\x98\x80/", "\xc3\xa9t\xc3\xa9", "last"}));
    start_test("--jsonl FIELD, also of stdin; empty documents are left out with a word");
    write_whole(dir("b.jsonl"), "{\"body\": \"one\"}\n{\"body\": \"\"}\n{\"body\": \"no\", \"body\": \"two\"}\n");
    const Outcome r =
        run("sh -c './tokenize - --jsonl body -o " + dir("json") + " --val-split tail < " + dir("b.jsonl") + "'");
    EXPECT(good(r) && contains(r.err, "left out: 1 empty document\n") &&
           written(dir("json")) == documents({"one", "two"}));
    start_test(".jsonl: a malformed line is an error that names file and line");
    for (const std::string& line : {std::string("{\"text\": \"x\""),
                                    std::string("{\"text\": \"x\"} {}"),
                                    std::string("\"text\""),
                                    std::string("{\"text\": 1}"),
                                    std::string("{\"tex\": \"x\"}"),
                                    std::string("{\"text\": \"\\ud83d\"}"),
                                    std::string("{\"text\": \"\\ud83d\\u0041\"}"),
                                    std::string("{\"text\": \"\\ude00\"}"),
                                    std::string("{\"text\": \"\\u12g4\"}"),
                                    std::string("{\"text\": \"\\x\"}"),
                                    std::string("{\"text\": \"\t\"}"),
                                    std::string("{\"text\": \"\xff\"}"),
                                    std::string("{\"text\": \"x\", }"),
                                    std::string("{\"text\": \"x\", \"n\": 01}"),
                                    std::string("{\"text\": \"x\", \"n\": 1.}"),
                                    std::string("{'text': 'x'}"),
                                    std::string("{\"text\": \"x\", \"n\": nul}"),
                                    std::string("{\"text\": \"x\0\"}", 13),
                                    std::string("["),
                                    "{\"text\": \"x\", \"n\": " + std::string(100000, '[')}) {
        write_whole(dir("bad.jsonl"),
                    "{\"text\": \"fine\"}\n{\"text\": \"fine\"}\n" + line + "\n{\"text\": \"fine\"}\n");
        const Outcome bad = tokenize(dir("bad.jsonl") + " -o " + dir("bad"));
        EXPECT(refused(bad, 1, "bad.jsonl, line 3") && !file_exists(dir("bad_train.bin")));
    }
    start_test(".jsonl: the recorded output of tiktoken on a nasty text, through JSON");
    const std::string text = read_whole("dev/test/fixtures/tokenizer_text.bin");
    const std::string recorded = read_whole("dev/test/fixtures/tokenizer_ids.bin");
    std::string line = "{\"text\": \"";
    for (unsigned char c : text)
        line += c < 0x20 || c == '"' || c == '\\' ? format("\\u%04x", c) : std::string(1, (char)c);
    write_whole(dir("nasty.jsonl"), line + "\"}\n");
    EXPECT(good(tokenize(dir("nasty.jsonl") + " -o " + dir("nasty") + " --val-split tail")));
    std::vector<int> want{EOT};
    for (size_t i = 0; i < recorded.size(); i += 2)
        want.push_back((unsigned char)recorded[i] | (unsigned char)recorded[i + 1] << 8);
    EXPECT(written(dir("nasty")) == want);
}

// Documents that say who they are: the number, then some words.
static std::vector<std::string> numbered(int count) {
    std::vector<std::string> texts;
    for (int i = 0; i < count; i++) texts.push_back(std::to_string(i) + " " + random_text(40));
    return texts;
}
static std::vector<std::vector<int>> apart(const std::vector<int>& ids) {
    std::vector<std::vector<int>> parts;
    for (int id : ids) {
        if (id == EOT) parts.emplace_back();
        if (!parts.empty()) parts.back().push_back(id);
    }
    return parts;
}

static void splits() {
    const std::vector<std::string> texts = numbered(600);
    std::string lines;
    for (const std::string& text : texts) lines += text + "\n<cut>\n";
    write_whole(dir("docs.txt"), lines);
    const std::string base = dir("docs.txt") + " --split-on '<cut>' -o ";
    start_test("validation by documents: whole ones, drawn by seed, in their order, about the fraction asked for");
    EXPECT(good(tokenize(base + dir("drawn") + " --val-fraction 0.2 --threads 1")));
    const auto train = apart(shard(dir("drawn_train.bin"))), val = apart(shard(dir("drawn_val.bin")));
    size_t t = 0, v = 0;
    for (const std::string& text : texts) {
        const std::vector<int> ids = document(text + "\n");
        if (t < train.size() && train[t] == ids) t++;
        else if (v < val.size() && val[v] == ids) v++;
    }
    EXPECT(t == train.size() && v == val.size() && t + v == texts.size() && v > 80 && v < 160);
    EXPECT(good(tokenize(base + dir("again") + " --val-fraction 0.2 --threads 3")));
    EXPECT(same_files(dir("drawn_train.bin"), dir("again_train.bin")) &&
           same_files(dir("drawn_val.bin"), dir("again_val.bin")));
    EXPECT(good(tokenize(base + dir("again") + " --val-fraction 0.2 --seed 7")));
    EXPECT(!same_files(dir("drawn_val.bin"), dir("again_val.bin")));
    start_test("a draw that takes no document, or all, is refused with the ways out");
    write_whole(dir("lone.jsonl"), "{\"text\": \"alone\"}\n");
    const Outcome r = tokenize(dir("lone.jsonl") + " -o " + dir("lone"));
    EXPECT(refused(r, 1, "--val-split tail") && !file_exists(dir("lone_train.bin")));
    start_test("few texts are split at the tail, unless documents are asked for");
    write_whole(dir("few_a.txt"), "one two three four five six seven eight nine ten eleven");
    write_whole(dir("few_b.txt"), "twelve");
    const std::string two = dir("few_a.txt") + " " + dir("few_b.txt") + " -o " + dir("tail");
    EXPECT(good(tokenize(two)));
    const std::vector<int> all = written(dir("tail"));
    EXPECT(all == documents({read_whole(dir("few_a.txt")), "twelve"}));
    EXPECT(shard(dir("tail_val.bin")).size() == (size_t)std::llround(0.1 * (double)all.size()));
    EXPECT(good(tokenize(two + " --val-fraction 0")) && shard(dir("tail_val.bin")).empty());
    EXPECT(file_exists(dir("tail_val.bin")));
    start_test("a split without a token is written with a word, unless it was asked for; one is no plural");
    write_whole(dir("short.txt"), "one two");
    const auto short_text = [](const std::string& fraction) {
        return tokenize(dir("short.txt") + " -o " + dir("short") + " --val-fraction " + fraction);
    };
    const Outcome none = short_text("0.1"), all_of_it = short_text("0.9");
    EXPECT(good(none) && one_line(none.err) && contains(none.err, "short_val.bin has no tokens"));
    EXPECT(none.out.rfind("1 file, 1 document, 3 tokens: 3 in ", 0) == 0);
    EXPECT(good(all_of_it) && one_line(all_of_it.err) && contains(all_of_it.err, "short_train.bin has no tokens"));
    EXPECT(short_text("0").err.empty() && short_text("1").err.empty() && short_text("0.5").err.empty());
}

static void shards() {
    const std::string in = dir("docs.txt") + " -o ";
    EXPECT(good(tokenize(in + dir("whole"))));
    const std::vector<int> train = shard(dir("whole_train.bin")), val = shard(dir("whole_val.bin"));
    for (const int limit : {1000, 199, 100000}) {
        start_test(format("--shard-tokens %d: the same tokens in numbered files", limit));
        const std::string out = fresh_folder("sharded");
        EXPECT(good(tokenize(in + out + "/new/x --shard-tokens " + std::to_string(limit))));
        std::vector<int> got[2];
        int files = 0;
        for (int i = 0; i < 2; i++)
            for (int n = 0;; n++, files++) {
                const std::string path = out + format("/new/x_%s_%06d.bin", i ? "val" : "train", n);
                if (!file_exists(path)) break;
                const std::vector<int> ids = shard(path);
                const size_t all = (i ? val : train).size();
                EXPECT(ids.size() == std::min<size_t>(limit, all - got[i].size()) && !ids.empty());
                got[i].insert(got[i].end(), ids.begin(), ids.end());
            }
        EXPECT(got[0] == train && got[1] == val && (int)names_in(out + "/new").size() == files);
    }
    start_test("numbered shards that are there already are not mixed with new ones");
    const std::string out = dir("sharded") + "/new/x";
    EXPECT(refused(tokenize(in + out + " --shard-tokens 50"), 2, "x_"));
    EXPECT(good(tokenize(in + dir("sharded") + "/new/y --shard-tokens 50000")));
}

static void interruptions() {
    const std::string out = fresh_folder("cut");
    start_test("a full disk: one sentence, and nothing is left; what was there stays");
    write_whole(out + "/x_train.bin", "earlier");
    const std::string file_limit = "sh -c 'ulimit -f 100; exec ./tokenize " + dir("long.txt") + " -o " + out + "/";
    EXPECT(refused(run(file_limit + "x'"), 1, "x_train.bin"));
    EXPECT(refused(run(file_limit + "x --shard-tokens 60000 --val-fraction 0.9'"), 1, "cannot write"));
    EXPECT(names_in(out) == std::vector<std::string>{"x_train.bin"} && read_whole(out + "/x_train.bin") == "earlier");
    for (const int number : {SIGINT, SIGTERM, SIGKILL}) {
        start_test(format("signal %d in the middle: nothing under a shard's name", number));
        unlink(dir("fifo").c_str());
        EXPECT(mkfifo(dir("fifo").c_str(), 0600) == 0);
        const pid_t child =
            start("sh -c 'exec ./tokenize - --threads 2 -o " + out + "/y --shard-tokens 10000 < " + dir("fifo") + "'");
        const int pipe = open(dir("fifo").c_str(), O_WRONLY);
        const std::string text = read_whole(dir("long.txt"));
        for (int64_t sent = 0, n = 1; sent < 6 << 20 && n > 0; sent += n)  // more than the program holds in memory
            n = write(pipe, text.data(), text.size());
        for (int wait = 0; wait < 1000 && names_in(out).size() < 3; wait++)
            usleep(10000);  // until it has begun to write
        kill(child, number);
        const Outcome r = finish(child);
        close(pipe);
        EXPECT(r.status == 128 + number);
        int whole = 0, temporary = 0;
        for (const std::string& name : names_in(out)) (contains(name, ".tmp") ? temporary : whole)++;
        EXPECT(whole == 1 && (number == SIGKILL || (temporary == 0 && contains(r.err, "interrupted"))));
    }
    start_test("what was left by a killed run is not in the way of the next");
    EXPECT(good(tokenize(dir("long.txt") + " -o " + out + "/y --shard-tokens 100000")));
}

static void mistakes() {
    start_test("mistakes in flags: exit 2, one sentence");
    for (const char* flags :
         {"x -o p --shard-tokens 0", "x -o p --shard-tokens 2147483648", "x -o p --shard-tokens many",
          "x -o p --threads 0", "x -o p --val-split half", "x -o p --unknown", "x -o p --seed -1", "x", "-o p",
          "--ids --decode", "--ids x", "--ids=1", "x -o p --val-fraction nan", "x -o"})
        EXPECT(refused(tokenize(flags), 2, "error"));
    start_test("--help names every flag");
    const std::string help = tokenize("--help").out;
    for (const char* flag :
         {"--shard-tokens", "--split-on", "--jsonl", "--val-split", "--val-fraction", "--seed", "--threads"})
        EXPECT(contains(help, flag));
    start_test("started elsewhere it finds its own vocabulary, and names the flag where there is none");
    char* here = getcwd(nullptr, 0);
    const std::string elsewhere = "sh -c 'cd " + folder + " && echo Hello world | ";
    EXPECT(run(elsewhere + here + "/tokenize --ids'").out == "15496 995 198\n");
    EXPECT(
        refused(run(elsewhere + here + "/tokenize --ids --tokenizer dev/data/gpt2_tokenizer.bin'"), 1, "--tokenizer"));
    EXPECT(run(std::string("cp ./tokenize ") + dir("tokenize_alone")).status == 0);
    EXPECT(refused(run(elsewhere + "./tokenize_alone --ids'"), 1, "--tokenizer"));
    free(here);
}

int main() {
    make_test_folder();
    tokenizer_load(tok, "dev/data/gpt2_tokenizer.bin");
    cutting();
    streaming();
    sources();
    separators();
    json_lines();
    splits();
    shards();
    interruptions();
    mistakes();
    return report_and_clean();
}
