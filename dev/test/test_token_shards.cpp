// What `tokenize` writes: the split into training and validation, numbered shards, loss masks, and
// nothing at all if it fails or is interrupted.
#include <sys/stat.h>
#include <csignal>
#include "dev/test/masks.h"
#include "dev/test/tokenized.h"
#include "llmc/base/json_text.h"

// Documents that can be told apart: a number, then some words.
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
    start_test("one text is split at the tail; several are with --val-split tail, wherever the last begins");
    write_whole(dir("few_a.txt"), "one two three four five six seven eight nine ten eleven");
    write_whole(dir("few_b.txt"), "twelve");
    const std::string two = dir("few_a.txt") + " " + dir("few_b.txt") + " -o " + dir("tail");
    EXPECT(good(tokenize(two + " --val-split tail")));
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

// Several files: each validates on its last bytes, whatever the vocabulary, and each tail is a
// document.
static void tails() {
    start_test("several files: the tail of each validates, as a document of its own");
    std::string texts[3];
    for (int f = 0; f < 3; f++) {
        for (int i = 0; i < 40000; i++) texts[f] += " " + std::to_string(10 * (i % 90 + 10) + f);
        write_whole(dir(format("part%d.txt", f)), texts[f]);
    }
    const std::string in = dir("part0.txt") + " " + dir("part1.txt") + " " + dir("part2.txt");
    const auto split = [&](const std::string& flags) {
        const Outcome r = tokenize(in + " -o " + dir("tails") + " " + flags);
        return good(r) && contains(r.out, "(the tail of each file)");
    };
    std::vector<std::string> heads, ends;
    for (const std::string& text : texts) {  // four bytes a number, all cut at its begin
        heads.push_back(text.substr(0, text.size() * 3 / 4)), ends.push_back(text.substr(text.size() * 3 / 4));
    }
    for (const char* more : {"", "--threads 1", "--threads 3 --val-split tails"}) {
        EXPECT(split(std::string("--val-fraction 0.25 ") + more));
        EXPECT(shard(dir("tails_train.bin")) == documents(heads) && shard(dir("tails_val.bin")) == documents(ends));
    }
    start_test("the tail of each file where a vocabulary is learned, and with .jsonl");
    Tokenizer learned;
    EXPECT(split("--val-fraction 0.25 --train-vocab 300"));
    tokenizer_load(learned, dir("tails_tokenizer.bin"));
    std::vector<int> expected;
    for (const std::string& text : ends) expected.push_back(learned.end_of_text), encode(learned, text, expected);
    EXPECT(shard(dir("tails_val.bin")) == expected);
    std::filesystem::remove(dir("tails_tokenizer.bin"));
    for (int f = 0; f < 2; f++)
        write_whole(dir(format("part%d.jsonl", f)), format("{\"text\": \"%d\"}\n{\"text\": \"b\"}\n", f));
    EXPECT(good(tokenize(dir("part0.jsonl") + " " + dir("part1.jsonl") + " --val-split tails --val-fraction 0.5 -o " +
                         dir("tails"))));
    EXPECT(shard(dir("tails_train.bin")) == documents({"0", "1"}) &&
           shard(dir("tails_val.bin")) == documents({"b", "b"}));
    start_test("no tails of stdin, whose bytes are not known: refused; without the flag the tail of all");
    const std::string piped = " < " + dir("few_a.txt") + "'", sh = "sh -c './tokenize - " + dir("few_a.txt") + " -o ";
    EXPECT(refused(run(sh + dir("tails") + " --val-split tails" + piped), 2, "--val-split tails"));
    const Outcome both = run(sh + dir("tails") + piped);
    EXPECT(good(both) && contains(both.out, "(the tail)"));
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

// The tokens of prompts and completions as `tokenize` should write them, and which of them count.
struct Masked {
    std::vector<int> ids;
    std::vector<bool> counts;

    void add(const std::string& prompt, const std::string& completion) {
        begin();
        part(prompt, false), part(completion, true);
    }
    void begin(bool counts_itself = true) { ids.push_back(EOT), counts.push_back(counts_itself); }
    void part(const std::string& text, bool in_loss) {
        encode(tok, text, ids);
        counts.resize(ids.size(), in_loss);
    }
};

// Whether the shard has these tokens from `first` on, and beside it their mask, byte for byte.
static bool is_masked_shard(const std::string& path, const Masked& all, size_t first, size_t& after) {
    const std::vector<int> ids = shard(path);
    after = first + ids.size();
    const bool same = after <= all.ids.size() && std::equal(ids.begin(), ids.end(), all.ids.begin() + first);
    const std::string mask = read_whole(path.substr(0, path.size() - 4) + ".mask");
    return same && mask == mask_of(path, [&](int64_t i) { return all.counts[first + i]; });
}

static void prompts() {
    const std::string out = fresh_folder("masked");
    Masked all;
    std::string lines[2];
    for (int i = 0; i < 400; i++) {
        const std::string prompt = i % 50 == 7 ? "" : random_text(random_below(20)),
                          completion = i % 60 == 8 ? "" : random_text(1 + random_below(30));
        if (prompt.empty() && completion.empty()) continue;
        all.add(prompt, completion);
        lines[i >= 170] +=
            "{\"id\": [1], \"completion\": " + json_text(completion) + ", \"prompt\": " + json_text(prompt) + "}\n";
    }
    write_whole(dir("p0.jsonl"), lines[0]), write_whole(dir("p1.jsonl"), lines[1]);
    const std::string in = dir("p0.jsonl") + " " + dir("p1.jsonl") + " -o " + out + "/";
    for (const char* more :
         {"", "--threads 1", "--threads 3", "--shard-tokens 1000", "--shard-tokens 77 --threads 2"}) {
        start_test(std::string("prompts and completions: tokens and loss masks, split at the tail: ") + more);
        const bool numbered = strstr(more, "--shard");
        EXPECT(good(tokenize(in + (numbered ? std::to_string(strlen(more)) : "x") + " --val-split tail " + more)));
        size_t at = 0;
        for (const char* split : {"train", "val"}) {
            const std::string prefix = out + "/" + (numbered ? std::to_string(strlen(more)) : "x") + "_" + split;
            if (!numbered) EXPECT(is_masked_shard(prefix + ".bin", all, at, at));
            for (int n = 0; numbered && file_exists(prefix + format("_%06d.bin", n)); n++)
                EXPECT(is_masked_shard(prefix + format("_%06d.bin", n), all, at, at));
            EXPECT(at > (split[0] == 't' ? 0 : all.ids.size() * 8 / 10));
        }
        EXPECT(at == all.ids.size());
    }
    start_test("documents are drawn for validation with their masks; without validation its mask is empty");
    EXPECT(good(tokenize(in + "y --val-fraction 0.3")) && good(tokenize(in + "z --val-fraction 0")));
    size_t after = 0;
    EXPECT(is_masked_shard(out + "/z_train.bin", all, 0, after) && after == all.ids.size());
    EXPECT(is_masked_shard(out + "/z_val.bin", all, after, after));
    const auto ones = [&](const std::string& name) {
        int64_t count = 0;
        for (unsigned char c : read_whole(out + "/" + name).substr(1024)) count += __builtin_popcount(c);
        return count;
    };
    EXPECT(ones("y_train.mask") + ones("y_val.mask") == std::count(all.counts.begin(), all.counts.end(), true));
    EXPECT(shard(out + "/y_train.bin").size() + shard(out + "/y_val.bin").size() == all.ids.size());
    start_test("text comes before prompts; --jsonl FIELD reads that alone; no mask of an earlier run stays");
    write_whole(dir("t.jsonl"), "{\"prompt\": \"p\", \"completion\": \"c\", \"text\": \"both\"}\n{\"text\": \"x\"}\n");
    EXPECT(good(tokenize(dir("t.jsonl") + " -o " + out + "/x --val-fraction 0")));
    EXPECT(shard(out + "/x_train.bin") == documents({"both", "x"}) && !file_exists(out + "/x_train.mask"));
    EXPECT(!file_exists(out + "/x_val.mask"));
    write_whole(dir("t.jsonl"), "{\"prompt\": \"p\", \"completion\": \"c\"}\n");
    EXPECT(good(tokenize(dir("t.jsonl") + " -o " + out + "/w --val-fraction 0 --jsonl prompt")));
    EXPECT(shard(out + "/w_train.bin") == documents({"p"}) && !file_exists(out + "/w_train.mask"));
    start_test("documents with and without prompts are not mixed: the file and the line are named");
    const std::string prompted = "{\"prompt\": \"p\", \"completion\": \"c\"}\n", plain = "{\"text\": \"x\"}\n";
    const auto mixed = [&](const std::string& first, const std::string& second, const std::string& expected) {
        write_whole(dir("m0.jsonl"), first), write_whole(dir("m1.jsonl"), second);
        return refused(tokenize(dir("m0.jsonl") + " " + dir("m1.jsonl") + " -o " + out + "/m"), 1, expected);
    };
    EXPECT(mixed(prompted + "\n" + plain, prompted, "m0.jsonl, line 3, has no \"prompt\""));
    EXPECT(mixed(plain + plain, plain + prompted, "m1.jsonl, line 2, has a \"prompt\""));
    EXPECT(mixed(plain + plain, "\n" + prompted, "m1.jsonl, line 2, has a \"prompt\""));
    EXPECT(mixed(prompted, "{\"prompt\": \"p\"}\n", "m1.jsonl, line 1, column 16: the field is not there"));
    EXPECT(mixed(prompted, "{\"prompt\": \"p\", \"completion\": 7}\n", "column 31: the field is no string"));
    write_whole(dir("m.txt"), "words");
    EXPECT(refused(tokenize(dir("p0.jsonl") + " " + dir("m.txt") + " -o " + out + "/m"), 1, "m.txt has no \"prompt\""));
    EXPECT(!file_exists(out + "/m_train.bin") && !file_exists(out + "/m_train.mask"));
    for (const std::string& name : names_in(out)) EXPECT(!contains(name, ".tmp"));
    start_test("a learned vocabulary: bytes of prompts and completions");
    EXPECT(good(tokenize(in + "b --bytes 1 --val-fraction 0")));
    Masked as_bytes;
    for (size_t i = 0; i < all.ids.size(); i++) {
        if (all.ids[i] == EOT) as_bytes.ids.push_back(256);
        else
            for (char byte : decode(tok, all.ids[i])) encode(tok, std::string(1, byte), as_bytes.ids);
        as_bytes.counts.resize(as_bytes.ids.size(), all.counts[i]);
    }
    EXPECT(is_masked_shard(out + "/b_train.bin", as_bytes, 0, after) && after == as_bytes.ids.size());
}

static void conversations() {
    const std::string out = fresh_folder("chat");
    start_test("conversations: several turns by the template; what the assistant says counts, and its end");
    const std::string turns =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"Be short.\"}, {\"content\": \"H\\u00e9 \\\"x\\\"\", "
        "\"role\": "
        "\"user\", \"name\": [1]}, {\"role\": \"assistant\", \"content\": \"One\\n\\ntwo.\"}, {\"role\": \"user\", "
        "\"content\": "
        "\"And?\"}, {\"role\": \"assistant\", \"content\": \"No.\"}], \"id\": 3}\n";
    Masked all;
    all.begin();
    all.part("<|system|>\nBe short.<|end|>\n<|user|>\nH\u00e9 \"x\"<|end|>\n<|assistant|>\n", false);
    all.part("One\n\ntwo.<|end|>\n", true);
    all.part("<|user|>\nAnd?<|end|>\n<|assistant|>\n", false), all.part("No.<|end|>\n", true);
    const std::string alpaca =
        "{\"instruction\": \"Add.\", \"input\": \"1, 1\", \"output\": \"2\"}\n{\"output\": \"b\", \"instruction\": "
        "\"a\", "
        "\"input\": \"\"}\n{\"instruction\": \"c\", \"output\": \"d\"}\n";
    all.add("<|user|>\nAdd.\n\n1, 1<|end|>\n<|assistant|>\n", "2<|end|>\n");
    all.add("<|user|>\na<|end|>\n<|assistant|>\n", "b<|end|>\n");
    all.add("<|user|>\nc<|end|>\n<|assistant|>\n", "d<|end|>\n");
    all.add("p", " c");
    write_whole(dir("chat.jsonl"), turns + alpaca + "{\"prompt\": \"p\", \"completion\": \" c\"}\n");
    Outcome r = tokenize(dir("chat.jsonl") + " -o " + out + "/x --val-fraction 0");
    size_t after = 0;
    EXPECT(good(r) && is_masked_shard(out + "/x_train.bin", all, 0, after) && after == all.ids.size());
    EXPECT(contains(r.out, "each turn is \"<|ROLE|>\\nTEXT<|end|>\\n\""));

    start_test("conversations without an answer are left out; wrong ones are named");
    const std::string silent = "{\"messages\": []}\n{\"messages\": [{\"role\": \"user\", \"content\": \"?\"}]}\n";
    write_whole(dir("chat.jsonl"), silent + alpaca);
    r = tokenize(dir("chat.jsonl") + " -o " + out + "/y --val-fraction 0");
    EXPECT(r.status == 0 && contains(r.err, "2 empty documents") && contains(r.out, "3 documents"));
    for (const auto& [line, expected] : std::vector<std::pair<std::string, std::string>>{
             {"{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}", "a role that is not system"},
             {"{\"messages\": [{\"role\": \"user\"}]}", "without \"role\" and \"content\""},
             {"{\"messages\": [{\"role\": \"user\", \"content\": null}]}", "no string"},
             {"{\"messages\": {\"role\": \"user\"}}", "no list of messages"},
             {"{\"messages\": \"text\"}", "\"messages\" is a string"},
             {"{\"messages\": [1]}", "no JSON object"},
             {"{\"instruction\": \"a\"}", "the field is not there"},
             {"{\"instruction\": \"a\", \"output\": \"b\", \"input\": 1}", "the field is no string"}}) {
        write_whole(dir("chat.jsonl"), alpaca + line + "\n");
        EXPECT(refused(tokenize(dir("chat.jsonl") + " -o " + out + "/z"), 1, "line 4, column"));
        EXPECT(refused(tokenize(dir("chat.jsonl") + " -o " + out + "/z"), 1, expected));
    }
}

// Documents of n tokens for each n, as --pack should place them.
static Masked placed(const std::vector<std::string>& texts, size_t window, int64_t& padding) {
    Masked all;
    for (const std::string& text : texts) {
        std::vector<int> ids;
        encode(tok, text, ids);
        const size_t used = all.ids.size() % window;
        const bool moved = used > 0 && used + 1 + ids.size() > window;
        if (moved) all.begin();  // the end of text behind the document before
        for (; moved && all.ids.size() % window != 0; padding++) all.begin(false);
        padding += moved;
        all.begin(!moved);
        all.part(text, true);
    }
    return all;
}

static void packed() {
    const std::string out = fresh_folder("packed");
    std::string lines;
    std::vector<std::string> texts;
    for (int i = 0; i < 200; i++) {
        texts.push_back(random_text(1 + random_below(i % 20 == 3 ? 300 : 40)));
        lines += "{\"text\": " + json_text(texts.back()) + "}\n";
    }
    write_whole(dir("pack.jsonl"), lines);
    for (const int window : {2, 32, 100}) {
        start_test(format("--pack %d: documents that fit a window are in one; padding does not count", window));
        int64_t padding = 0;
        const Masked all = placed(texts, window, padding);
        size_t after = 0;
        const std::string command = dir("pack.jsonl") + format(" --val-fraction 0 --pack %d -o ", window) + out;
        const Outcome r = tokenize(command + "/x");
        EXPECT(good(r) && is_masked_shard(out + "/x_train.bin", all, 0, after) && after == all.ids.size());
        EXPECT(contains(r.out, count_text(padding, "token") + " of padding"));
        EXPECT(good(tokenize(command + format("/%d --shard-tokens %d", window, 4 * window))));
        size_t at = 0;
        for (int n = 0; file_exists(out + format("/%d_train_%06d.bin", window, n)); n++)
            EXPECT(is_masked_shard(out + format("/%d_train_%06d.bin", window, n), all, at, at));
        EXPECT(at == all.ids.size());
    }
    start_test("--pack: plain text, cut into blocks, and drawn documents");
    std::string text;
    for (const std::string& document : texts) text += document + "\n----\n";
    write_whole(dir("pack.txt"), text);
    EXPECT(good(tokenize(dir("pack.txt") + " --split-on ---- --pack 64 --val-fraction 0.3 -o " + out + "/t")));
    for (const char* split : {"train", "val"}) {
        const std::vector<int> ids = shard(out + "/t_" + split + ".bin");
        int cut = 0;
        for (size_t begin = 0, end; begin < ids.size(); begin = end) {
            for (end = begin + 1; end < ids.size() && ids[end] != EOT;) end++;
            cut += end - begin <= 64 && begin / 64 != (end - 1) / 64;
        }
        EXPECT(cut == 0 && ids.size() > 1000);
    }
    start_test("--pack: what is refused");
    const std::string in = dir("pack.jsonl") + " -o " + out + "/r ";
    EXPECT(refused(tokenize(in + "--pack 64 --val-split tail"), 2, "--val-split documents"));
    EXPECT(refused(tokenize(in + "--pack 64 --shard-tokens 100"), 2, "no multiple of --pack 64"));
    EXPECT(refused(tokenize(in + "--pack 1"), 2, "--pack 1"));
}

static void interruptions() {
    const std::string out = fresh_folder("cut");
    write_whole(dir("long.txt"), random_text(400000));
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

int main() {
    prepare_tokenize_tests();
    splits();
    tails();
    shards();
    prompts();
    conversations();
    packed();
    interruptions();
    return report_and_clean();
}
