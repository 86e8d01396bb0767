// `tokenize` as its users run it: the texts it takes, what it refuses, and that the tokens are
// those of the whole text, however it was cut, split into files and divided among threads.
#include "dev/test/tokenized.h"

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
    start_test("JSON is refused as text, with what to do; --jsonl FIELD reads its lines, stdin all of it");
    for (const char* name : {"list.json", "lines.ndjson"}) {
        write_whole(dir(name), "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
        r = tokenize(dir(name) + " -o " + dir("never"));
        EXPECT(refused(r, 2, name) && contains(r.err, "--jsonl FIELD") && !file_exists(dir("never_train.bin")));
        EXPECT(good(tokenize(dir(name) + " --jsonl text --val-split tail -o " + dir("json"))));
        EXPECT(written(dir("json")) == documents({"one", "two"}));
    }
    EXPECT(good(run("sh -c './tokenize - -o " + dir("json") + " < " + dir("list.json") + "'")));
    EXPECT(written(dir("json")) == documents({read_whole(dir("list.json"))}));
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
    std::vector<std::string> want;  // the random texts also contain lines of a single 5
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
    start_test(".jsonl: a document of 17 MiB");
    std::string words;
    while (words.size() < 17 << 20) words += "a line of words ";
    write_whole(dir("long.jsonl"), "{\"text\": \"" + words + "\"}\n{\"text\": \"end\"}\n");
    EXPECT(good(tokenize(dir("long.jsonl") + " -o " + dir("json") + " --val-split tail")));
    EXPECT(written(dir("json")) == documents({words, "end"}));
    unlink(dir("long.jsonl").c_str());
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

static void tokenize_program() {
    start_test("tokenize: shards of several texts, ids and back, one sentence on mistakes");
    write_whole(dir("one.txt"), "Hello world");
    write_whole(dir("two.txt"), "To be, or not to be\n");
    EXPECT(run("./tokenize " + dir("one.txt") + " " + dir("two.txt") + " -o " + dir("pre") +
               " --val-fraction 0.5 --val-split tail")
               .status == 0);
    const std::string train = read_whole(dir("pre_train.bin")).substr(1024),
                      val = read_whole(dir("pre_val.bin")).substr(1024);
    const std::vector<uint16_t> want = {50256, 15496, 995, 50256, 2514, 307};
    EXPECT((train + val).compare(0, want.size() * 2, (const char*)want.data(), want.size() * 2) == 0);
    EXPECT(train.size() + val.size() == 24 && std::abs((int)train.size() - (int)val.size()) <= 2);
    write_whole(dir("bytes"), std::string("\xff\x00\xfe caf\xc3\xa9 \r\n\n  x<|endoftext|>", 30));
    EXPECT(run("sh -c './tokenize --ids < " + dir("bytes") + " | ./tokenize --decode > " + dir("back") + "'").status ==
               0 &&
           same_files(dir("bytes"), dir("back")));
    EXPECT(refused(run("./tokenize " + dir("missing.txt") + " -o " + dir("p")), 1, "missing.txt"));
    EXPECT(run("./tokenize").status == 2 && run("./tokenize x -o").status == 2 &&
           run("./tokenize x --val-fraction 2 -o y").status == 2);
    write_whole(dir("ids"), "12 abc");
    EXPECT(refused(run("sh -c './tokenize --decode < " + dir("ids") + "'"), 1, "entry 2"));
}

int main() {
    prepare_tokenize_tests();
    tokenize_program();
    cutting();
    streaming();
    sources();
    separators();
    json_lines();
    mistakes();
    return report_and_clean();
}
