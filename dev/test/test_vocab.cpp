// Vocabularies of one's own: what `tokenize --train-vocab` learns, what it refuses, and that the
// trainers find it and measure with it.
#include <filesystem>
#include <map>
#include "dev/data/bpe_trainer.h"
#include "dev/test/run_program.h"
#include "llmc/data/bits_per_byte.h"

static uint64_t text_state = 88172645463325252u;
static uint64_t random_below(uint64_t n) {
    text_state ^= text_state << 13, text_state ^= text_state >> 7, text_state ^= text_state << 17;
    return text_state % n;
}

// ---- the oracle: every count and every word from the beginning, before each merge

struct PlainVocabulary {
    std::vector<std::string> tokens = byte_tokens();
    std::map<std::string, int> id_of;

    PlainVocabulary() {
        for (size_t id = 0; id < tokens.size(); id++) id_of[tokens[id]] = (int)id;
    }
    int id(const std::string& bytes) const {
        const auto found = id_of.find(bytes);
        return found == id_of.end() ? -1 : found->second;
    }
    // The neighbours that make the token of the lowest id are merged, the leftmost first, until
    // none do.
    std::vector<int> parts_of(const std::string& word) const {
        std::vector<int> parts;
        for (char c : word) parts.push_back(id(std::string(1, c)));
        for (;;) {
            int best = -1;
            size_t place = 0;
            for (size_t i = 0; i + 1 < parts.size(); i++) {
                const int joined = id(tokens[parts[i]] + tokens[parts[i + 1]]);
                if (joined >= 0 && (best < 0 || joined < best)) best = joined, place = i;
            }
            if (best < 0) return parts;
            parts[place] = best;
            parts.erase(parts.begin() + (int64_t)place + 1);
        }
    }
    bool learn_token(const std::map<std::string, int64_t>& words) {
        std::map<std::pair<int, int>, int64_t> counts;
        for (const auto& [word, count] : words) {
            const std::vector<int> parts = parts_of(word);
            for (size_t i = 0; i + 1 < parts.size(); i++)
                if (tokens[parts[i]].size() + tokens[parts[i + 1]].size() <= 255)
                    counts[{parts[i], parts[i + 1]}] += count;
        }
        int64_t most = 0;
        std::pair<int, int> best;
        for (const auto& [pair, count] : counts)  // in the order of ids
            if (count > most) most = count, best = pair;
        if (most == 0) return false;
        id_of[tokens[best.first] + tokens[best.second]] = (int)tokens.size();
        tokens.push_back(tokens[best.first] + tokens[best.second]);
        return true;
    }
};

static Tokenizer bytes_only;  // cuts texts into words

static std::map<std::string, int64_t> words_of(const std::string& text) {
    std::map<std::string, int64_t> words;
    for (size_t at = 0, end; at < text.size(); at = end) {
        end = next_piece(bytes_only, text, at);
        words[text.substr(at, end - at)]++;
    }
    return words;
}
static WordCounts counted(const std::map<std::string, int64_t>& words) {
    WordCounts counts;
    for (const auto& [word, count] : words)
        for (int64_t i = 0; i < count; i++) counts.add(word);
    return counts;
}
// What both learn, up to `size` tokens without <|endoftext|>, and what both make of the words.
static bool learns_as_the_oracle(const std::map<std::string, int64_t>& words, size_t size) {
    PlainVocabulary plain;
    while (plain.tokens.size() < size && plain.learn_token(words)) continue;
    BpeTrainer trainer(counted(words));
    while (trainer.tokens.size() < size && trainer.learn_token()) continue;
    bool good = trainer.tokens == plain.tokens;
    Tokenizer tok;
    set_vocabulary(tok, trainer.tokens);
    for (const auto& [word, count] : words) {
        std::vector<int> ids;
        encode(tok, word, ids);
        if (next_piece(tok, word, 0) == word.size()) good = good && ids == plain.parts_of(word);
    }
    return good;
}

static std::string random_bytes(size_t n, const std::string& of) {
    std::string bytes;
    for (size_t i = 0; i < n; i++) bytes += of.empty() ? (char)random_below(256) : of[random_below(of.size())];
    return bytes;
}

static void learning() {
    start_test("the tokens of single bytes are GPT-2's, in its order");
    Tokenizer gpt2;
    tokenizer_load(gpt2, "dev/data/gpt2_tokenizer.bin", false);
    EXPECT(std::equal(bytes_only.bytes_of.begin(), bytes_only.bytes_of.begin() + 256, gpt2.bytes_of.begin()));
    EXPECT(bytes_only.end_of_text == 256 && bytes_only.bytes_of[256] == "<|endoftext|>");

    start_test("by hand: most frequent first, of equals the lower ids");
    BpeTrainer by_hand(counted({{"abab", 3}, {"cd", 6}, {"ef", 7}, {"abx", 1}}));
    while (by_hand.learn_token()) continue;
    // ab and ef 7 times: a is before e. cd 6 times. abab 3 times; abx once.
    const std::vector<std::string> learned(by_hand.tokens.begin() + 256, by_hand.tokens.end());
    EXPECT(learned == (std::vector<std::string>{"ab", "ef", "cd", "abab", "abx"}));

    start_test("the same tokens as with all counts made anew before every merge");
    for (const char* letters : {"a", "ab", "aab ", "abc  ", "-=", "\xc3\xa9 e", ""})
        for (int round = 0; round < 12; round++) {
            const std::string text = random_bytes(20 + random_below(400), letters);
            if (!EXPECT(learns_as_the_oracle(words_of(text), 257 + random_below(120))))
                printf("    letters '%s', round %d\n", letters, round);
        }

    start_test("runs of all lengths, whose pairs overlap");
    std::map<std::string, int64_t> runs;
    for (int length = 1; length <= 40; length++) runs[std::string(length, '-')] = 1 + (int64_t)random_below(9);
    EXPECT(learns_as_the_oracle(runs, 400));
    for (int round = 0; round < 30; round++) {
        std::map<std::string, int64_t> words;
        for (int i = 0; i < 30; i++) words[random_bytes(1 + random_below(24), "aab")] += 1 + (int64_t)random_below(5);
        EXPECT(learns_as_the_oracle(words, 256 + random_below(200)));
    }

    start_test("no token is longer than the file can say");
    BpeTrainer longest(counted({{std::string(3000, 'x'), 1}}));
    size_t most = 0;
    while (longest.learn_token()) most = std::max(most, longest.tokens.back().size());
    EXPECT(most > 128 && most <= 255);

    start_test("Shakespeare: the first 300 merges as by the oracle");
    const std::string play = read_whole("dev/data/shakespeare/macbeth.txt");
    EXPECT(!play.empty() && learns_as_the_oracle(words_of(play.substr(0, 20000)), 556));
}

// ---- the program

static Outcome tokenize(const std::string& flags) { return run("./tokenize " + flags); }
static bool good(const Outcome& r) {
    if (r.status != 0) printf("    status %d: %s\n", r.status, r.err.substr(0, 300).c_str());
    return r.status == 0;
}
static std::vector<int> shard(const std::string& path) {
    const std::string bytes = read_whole(path);
    std::vector<int> ids;
    for (size_t at = 1024; at + 1 < bytes.size(); at += 2)
        ids.push_back((unsigned char)bytes[at] | (unsigned char)bytes[at + 1] << 8);
    return ids;
}
static std::string text_of(const Tokenizer& tok, const std::vector<int>& ids) {
    std::string text;
    for (int id : ids)
        if (id != tok.end_of_text) text += decode(tok, id);
    return text;
}
static bool has_token(const Tokenizer& tok, const std::string& bytes) {
    return std::count(tok.bytes_of.begin(), tok.bytes_of.end() - 1, bytes) > 0;
}
// Text of made-up words, which repeat.
static std::string made_up_text(size_t words) {
    static std::vector<std::string> dictionary;
    while (dictionary.size() < 300) dictionary.push_back(random_bytes(1 + random_below(9), "aeiounrstlmd"));
    std::string text;
    for (size_t i = 0; i < words; i++)
        text += dictionary[random_below(1 + random_below(300))] + (random_below(12) ? " " : ".\n");
    return text;
}

static void program() {
    const std::string text = made_up_text(60000);
    write_whole(dir("text.txt"), text);
    start_test("--train-vocab: the file and the shards, the same for any number of threads and any shard size");
    for (const char* flags : {"--threads 1", "--threads 2", "--threads 3 --shard-tokens 5000"})
        EXPECT(good(tokenize("--train-vocab 600 " + dir("text.txt") + " -o " + dir("v") + flags[10] + " " + flags)));
    for (const char* name : {"v2_tokenizer.bin", "v3_tokenizer.bin"})
        EXPECT(same_files(dir("v1_tokenizer.bin"), dir(name)));
    EXPECT(same_files(dir("v1_train.bin"), dir("v2_train.bin")) && same_files(dir("v1_val.bin"), dir("v2_val.bin")));
    Tokenizer tok;
    tokenizer_load(tok, dir("v1_tokenizer.bin"));
    EXPECT(tok.vocab_size() == 600 && tok.end_of_text == 599);
    std::vector<int> sharded;
    for (int i = 0; file_exists(dir(format("v3_train_%06d.bin", i))); i++) {
        const std::vector<int> more = shard(dir(format("v3_train_%06d.bin", i)));
        sharded.insert(sharded.end(), more.begin(), more.end());
    }
    const std::vector<int> train = shard(dir("v1_train.bin")), val = shard(dir("v1_val.bin"));
    EXPECT(sharded == train && train[0] == 599);

    start_test("the tail is the last bytes, from the beginning of a piece on");
    EXPECT(text_of(tok, train) + text_of(tok, val) == text);
    const double share = (double)text_of(tok, val).size() / (double)text.size();
    EXPECT(share <= 0.1 + 1e-6 && share > 0.0999);

    start_test("what is learned is what the trainer learns of the training split");
    Tokenizer learned;
    WordCounts words = counted(words_of(text_of(tok, train)));
    Logger silent;
    silent.silent = true;
    train_vocabulary(learned, words, 600, silent, [] {});
    EXPECT(learned.bytes_of == tok.bytes_of);
    std::vector<int> again{599};
    encode(tok, text_of(tok, train), again);
    EXPECT(again == train);

    start_test("the validation split is not seen: tail, documents that are drawn, .jsonl");
    const std::string common = "same same same\n", rare = " qqzzqq qqzzqq qqzzqq qqzzqq qqzzqq qqzzqq qqzzqq";
    write_whole(dir("tail.txt"), text + std::string(text.size() / 20 / rare.size(), ' ') + rare + rare + rare);
    EXPECT(good(tokenize("--train-vocab 400 " + dir("tail.txt") + " -o " + dir("tail"))));
    EXPECT(good(tokenize("--train-vocab 400 " + dir("tail.txt") + " --val-fraction 0 -o " + dir("all"))));
    Tokenizer tail, all;
    tokenizer_load(tail, dir("tail_tokenizer.bin")), tokenizer_load(all, dir("all_tokenizer.bin"));
    EXPECT(!has_token(tail, "qq") && shard(dir("all_val.bin")).empty());
    std::string lines, json;
    for (int i = 0; i < 400; i++) {
        const std::string mark = random_bytes(1, "BCDFGHJKLMNP") + std::to_string(i) + "!";
        lines += mark + mark + mark + "\n" + common + "---\n";
        json += "{\"text\": \"" + mark + mark + mark + "\\n" + common.substr(0, common.size() - 1) + "\"}\n";
    }
    write_whole(dir("lines.txt"), lines), write_whole(dir("lines.jsonl"), json);
    for (const std::string& flags :
         {dir("lines.txt") + " --split-on ---", dir("lines.jsonl"), dir("lines.jsonl") + " --val-split tail",
          dir("lines.txt") + " --split-on --- --val-split tail"}) {
        EXPECT(good(tokenize("--train-vocab 300 --val-fraction 0.3 -o " + dir("d") + " " + flags)));
        Tokenizer drawn, expected;
        tokenizer_load(drawn, dir("d_tokenizer.bin"));
        WordCounts seen;
        std::string document;
        std::vector<int> ids = shard(dir("d_train.bin"));
        ids.push_back(drawn.end_of_text);
        for (int id : ids) {
            document += id == drawn.end_of_text ? "" : decode(drawn, id);
            if (id != drawn.end_of_text) continue;
            for (const auto& [word, count] : words_of(document))
                for (int64_t i = 0; i < count; i++) seen.add(word);
            document.clear();
        }
        train_vocabulary(expected, seen, 300, silent, [] {});
        EXPECT(expected.bytes_of == drawn.bytes_of && !shard(dir("d_val.bin")).empty());
    }

    start_test("--bytes 1 is --train-vocab 257: every byte is a token; stdin will do");
    EXPECT(good(tokenize("--bytes 1 " + dir("text.txt") + " -o " + dir("b"))));
    EXPECT(good(tokenize("--train-vocab 257 " + dir("text.txt") + " -o " + dir("c"))));
    EXPECT(good(run("sh -c './tokenize --bytes=1 - -o " + dir("p") + " < " + dir("text.txt") + "'")));
    for (const char* name : {"_train.bin", "_val.bin", "_tokenizer.bin"})
        EXPECT(same_files(dir(std::string("b") + name), dir(std::string("c") + name)) &&
               same_files(dir(std::string("b") + name), dir(std::string("p") + name)));
    EXPECT(shard(dir("b_train.bin")).size() + shard(dir("b_val.bin")).size() == text.size() + 1);

    start_test("--ids and --decode with such a file: any bytes come back");
    for (const char* name : {"v1", "b", "tail"}) {
        const std::string flags = " --tokenizer " + dir(std::string(name) + "_tokenizer.bin");
        const std::string bytes = random_bytes(20000, "") + text.substr(0, 20000) + random_bytes(3000, "ae \n");
        write_whole(dir("bytes"), bytes);
        EXPECT(good(run("sh -c './tokenize --ids" + flags + " < " + dir("bytes") + " > " + dir("ids") +
                        " && ./tokenize --decode" + flags + " < " + dir("ids") + " > " + dir("back") + "'")));
        EXPECT(same_files(dir("bytes"), dir("back")));
    }

    start_test("one word of a megabyte, and one of a million equal letters");
    write_whole(dir("word.txt"), random_bytes(1 << 20, "abcdefghijklmnopqrstuvwxyz"));
    EXPECT(good(run("timeout 60 ./tokenize --train-vocab 4096 " + dir("word.txt") + " -o " + dir("word"))));
    write_whole(dir("word.txt"), std::string(1 << 20, 'x'));
    EXPECT(good(run("timeout 60 ./tokenize --train-vocab 264 " + dir("word.txt") + " -o " + dir("word"))));
}

static void mistakes() {
    start_test("a vocabulary larger than the text has merges: how many there are, and so many are accepted");
    write_whole(dir("little.txt"), "the cat and the hat");
    const Outcome r = tokenize("--train-vocab 4096 --val-fraction 0 " + dir("little.txt") + " -o " + dir("little"));
    EXPECT(refused(r, 2, "--train-vocab 4096") && !file_exists(dir("little_train.bin")));
    const size_t at = r.err.find("257 to ");
    const int most = at == r.err.npos ? 0 : atoi(r.err.c_str() + at + 7);
    const std::string rest = " --val-fraction 0 " + dir("little.txt") + " -o " + dir("little");
    EXPECT(most == 257 + 11);  // at, he, the, an, cat, hat, " the", " an", " cat", " hat", " and"
    EXPECT(good(tokenize("--train-vocab " + std::to_string(most) + rest)));
    EXPECT(refused(tokenize("--train-vocab " + std::to_string(most + 1) + rest), 2, "--train-vocab"));

    start_test("mistakes in flags and texts");
    const std::string in = dir("text.txt") + " -o " + dir("bad") + " ";
    for (const char* flags :
         {"--train-vocab 256", "--train-vocab 65536", "--train-vocab 0", "--train-vocab -1", "--train-vocab many",
          "--train-vocab 4096.5", "--bytes 2", "--bytes yes", "--bytes 1 --train-vocab 300",
          "--train-vocab 300 --tokenizer dev/data/gpt2_tokenizer.bin", "--bytes 1 --tokenizer x", "--train-vocab"})
        EXPECT(refused(tokenize(in + flags), 2, "error"));
    EXPECT(refused(tokenize("--ids --train-vocab 300"), 2, "--train-vocab"));
    EXPECT(refused(tokenize("--decode --bytes 1"), 2, "--bytes"));
    EXPECT(refused(tokenize("--train-vocab 300 - -o " + dir("bad")), 2, "stdin"));
    EXPECT(refused(tokenize("--train-vocab 300 --val-fraction 1 " + in), 2, "--val-fraction 1"));
    EXPECT(refused(tokenize("--train-vocab 300 " + dir("absent.txt") + " -o " + dir("bad")), 1, "absent.txt"));
    write_whole(dir("zero.txt"), std::string("a\0b", 3));
    EXPECT(refused(tokenize("--train-vocab 300 " + dir("zero.txt") + " -o " + dir("bad")), 1, "zero byte"));
    write_whole(dir("latin.txt"), "caf\xe9 cr\xe8me");
    EXPECT(refused(tokenize("--train-vocab 300 " + dir("latin.txt") + " -o " + dir("bad")), 1, "latin.txt"));
    write_whole(dir("broken.jsonl"), "{\"text\": \"x\"}\n{\"text\": 1}\n");
    EXPECT(refused(tokenize("--train-vocab 300 " + dir("broken.jsonl") + " -o " + dir("bad")), 1, "line 2"));
    write_whole(dir("none.txt"), "");
    const Outcome nothing = tokenize("--train-vocab 300 " + dir("none.txt") + " -o " + dir("bad"));
    EXPECT(nothing.status == 1 && contains(nothing.err, "no text in 1 file"));
    for (const char* name : {"bad_train.bin", "bad_val.bin", "bad_tokenizer.bin", "bad_tokenizer.bin.tmp"})
        EXPECT(!file_exists(dir(name)));

    start_test("random files: they are tokenized, or refused with a sentence");
    for (int round = 0; round < 25; round++) {
        std::string bytes = random_bytes(random_below(5000), round % 3 ? "ab\n {}\"text:\xc3\xa9" : "");
        if (round % 2) bytes += made_up_text(300);
        const std::string path = dir(round % 5 ? "random.txt" : "random.jsonl");
        write_whole(path, bytes);
        const Outcome any = tokenize("--train-vocab " + std::to_string(257 + random_below(200)) + " " + path + " -o " +
                                     dir("random") + " --val-fraction " + std::to_string(0.1 * (double)(round % 11)));
        EXPECT(any.status == 0 || any.status == 1 || any.status == 2);
        EXPECT(any.status == 0 || contains(any.err, "error: "));
    }

    start_test("a vocabulary beside the shards is theirs: no other tokens get its name");
    EXPECT(refused(tokenize(dir("text.txt") + " -o " + dir("v1")), 2, "v1_tokenizer.bin"));
    EXPECT(good(tokenize(dir("text.txt") + " -o " + dir("v1") + " --tokenizer " + dir("v1_tokenizer.bin"))));
    EXPECT(good(tokenize("--train-vocab 300 " + dir("text.txt") + " -o " + dir("v1"))));
    EXPECT(refused(tokenize("--bytes 1 " + dir("text.txt") + " -o dev/data/gpt2"), 2, "GPT-2's vocabulary"));
    start_test("--help names the flags");
    const std::string help = tokenize("--help").out;
    EXPECT(contains(help, "--train-vocab") && contains(help, "--bytes"));
}

// ---- the trainers

static Outcome train(const std::string& flags) {
    return run("./train_gpt2_cpu -b 2 -t 16 --threads 2 -s 0 -v 2 -m 3 -x 2 " + flags);
}
static std::string data(const std::string& name) {
    return "-i " + dir(name + "_train.bin") + " -j " + dir(name + "_val.bin") + " ";
}

static void finding() {
    write_whole(dir("text.txt"), made_up_text(20000));
    EXPECT(good(tokenize("--train-vocab 600 " + dir("text.txt") + " -o " + dir("own"))));
    EXPECT(good(tokenize("--train-vocab 600 --shard-tokens 3000 " + dir("text.txt") + " -o " + dir("parts"))));
    start_test("the trainers find the vocabulary beside the shards, and V");
    const std::string shape = "-e L2C32H2T16";
    for (const std::string& flags : {data("own"), "-i " + dir("parts_train_000001.bin") + " -j " + dir("own_val.bin "),
                                     "-i '" + dir("parts_train_*.bin") + "' -j '" + dir("parts_val_*.bin' ")}) {
        const Outcome r = train(flags + shape);
        EXPECT(good(r) && contains(r.out, "vocabulary: 600 tokens of " + folder) && contains(r.out, ", V 600: "));
        EXPECT(contains(r.out, "\nbits per byte ") && contains(r.out, "\nval loss "));
    }
    EXPECT(contains(train(data("own") + "-e d6 --plan").out, "vocabulary 600 (padded to 640)"));
    EXPECT(contains(train("-x 0 -j " + dir("own_val.bin") + " " + shape).out, ", V 600: "));
    start_test("a V that contradicts it: too small is refused, larger than its padding gets a word");
    EXPECT(good(train(data("own") + shape + "V600")));
    Outcome r = train(data("own") + shape + "V640");
    EXPECT(good(r) && r.err.empty() && contains(r.out, "bits per byte"));
    r = train(data("own") + shape + "V641");
    EXPECT(good(r) && contains(r.err, "own_tokenizer.bin") && !contains(r.out, "bits per byte"));
    EXPECT(refused(train(data("own") + shape + "V599"), 2, "V600"));
    start_test("--tokenizer is taken before what lies beside the shards; without either V is GPT-2's");
    write_whole(dir("other_train.bin"), read_whole(dir("own_train.bin")));
    r = train("-i " + dir("other_train.bin") + " -v 0 " + shape);
    EXPECT(good(r) && contains(r.out, ", V 50257: ") && !contains(r.out, "vocabulary: "));
    r = train("-i " + dir("other_train.bin") + " -v 0 " + shape + " --tokenizer " + dir("own_tokenizer.bin"));
    EXPECT(good(r) && contains(r.out, ", V 600: "));
    r = train(data("own") + "-v 0 " + shape + " --tokenizer dev/data/gpt2_tokenizer.bin");
    EXPECT(good(r) && contains(r.out, ", V 50257: "));
    start_test("a damaged file beside the shards: exit 1, one sentence");
    write_whole(dir("other_tokenizer.bin"), "no tokenizer");
    EXPECT(refused(train("-i " + dir("other_train.bin") + " -v 0 " + shape), 1, "other_tokenizer.bin"));
    write_whole(dir("other_tokenizer.bin"), read_whole(dir("own_tokenizer.bin")).substr(0, 3000));
    EXPECT(refused(train("-i " + dir("other_train.bin") + " " + shape), 1, "other_tokenizer.bin"));
    start_test("a run goes on, and its folder as -e generates, with the vocabulary that it had");
    EXPECT(good(train(data("own") + shape + " -o " + dir("log"))));
    r = run("./train_gpt2_cpu -o " + dir("log") + " -y 1 -x 4");
    EXPECT(good(r) && contains(r.out, ", V 600: ") && contains(r.out, "bits per byte"));
    EXPECT(good(train("-o " + dir("log") + " -y 1 -x 5 " + shape)));
    Tokenizer tok;
    tokenizer_load(tok, dir("own_tokenizer.bin"), false);
    r = run("./train_gpt2_cpu -e " + dir("log") + " -x 0 --prompt lemon -g 20 --quiet 1 --temperature 0");
    EXPECT(good(r) && r.out.substr(0, 5) == "lemon" && r.err.empty());
    const std::string newest = dir("log/model_00000005.bin");
    const Outcome same = run("./train_gpt2_cpu -e " + newest +
                             " -x 0 --prompt lemon -g 20 --quiet 1 --temperature 0 "
                             "--tokenizer " +
                             dir("own_tokenizer.bin"));
    EXPECT(good(same) && same.out == r.out);
    start_test("a model file in a run's folder has the vocabulary of the run, too");
    for (const char* copy : {"log/model_best.bin", "log/other.bin"}) write_whole(dir(copy), read_whole(newest));
    const std::string prompt = " -x 0 --prompt lemon -g 20 --quiet 1 --temperature 0";
    for (const std::string& file : {newest, dir("log/model_best.bin")}) {
        const Outcome named = run("./train_gpt2_cpu -e " + file + prompt);
        EXPECT(good(named) && named.out == r.out && named.err.empty());
    }
    r = run("./train_gpt2_cpu -e " + dir("log/other.bin") + prompt);
    EXPECT(refused(r, 2, "of dev/data/gpt2_tokenizer.bin, and the model (-e " + dir("log/other.bin")));
    start_test("--prompt with nothing in it: a text from nothing");
    r = run("./train_gpt2_cpu -e " + dir("log") + " -x 0 --prompt '' -g 5 --quiet 1");
    EXPECT(good(r) && !r.out.empty() && !contains(r.out, "generating") && !contains(r.out, "val loss"));
    start_test("a run from scratch is evaluated at positions that it has not trained: a warning");
    EXPECT(good(train(data("own") + shape + " -t 8 -o " + dir("short"))));
    const std::string evaluate = "./train_gpt2_cpu -x 0 -s 0 -j " + dir("own_val.bin") + " -e " + dir("short");
    r = run(evaluate);
    EXPECT(good(r) && contains(r.err, "trained 8 positions, and -t 16 evaluates it at more"));
    r = run(evaluate + " -t 8");
    EXPECT(good(r) && r.err.empty());
    start_test("-e RUN -x 0 without -j validates on the data of the run; data that is not there is named");
    const std::string bare = "./train_gpt2_cpu -x 0 -s 0 -t 8 -e " + dir("short");
    const auto losses = [](const Outcome& o) { return o.out.substr(std::min(o.out.find("val loss"), o.out.size())); };
    const Outcome own = run(bare);
    EXPECT(good(own) && own.err.empty() && !losses(own).empty() && losses(own) == losses(r));
    EXPECT(rename(dir("own_val.bin").c_str(), dir("moved_val.bin").c_str()) == 0);
    EXPECT(refused(run(bare), 1, "own_val.bin"));
    EXPECT(rename(dir("moved_val.bin").c_str(), dir("own_val.bin").c_str()) == 0);
    start_test("a text that may go beyond the positions that the run has trained: a warning");
    const std::string generate = "./train_gpt2_cpu -x 0 --prompt '' --quiet 1 -e " + dir("short");
    r = run(generate + " -g 9 --samples 2");
    EXPECT(good(r) && one_line(r.err) && contains(r.err, "has trained 8 positions") && contains(r.err, "may take 9"));
    EXPECT(good(run(generate + " -g 8")) && run(generate + " -g 8").err.empty());
    start_test("a prompt longer than the context, and one to a model of random weights: a warning");
    const std::string prompted = "./train_gpt2_cpu -x 0 -g 1 --quiet 1 --prompt ", many(9, 'x'), few(8, 'x'),
                      short_model = dir("short_context");
    EXPECT(good(run(format("./train_gpt2_cpu -e L1C32H2T8 -t 8 -b 1 -x 1 -v 0 -s 0 -i %s -o %s", dir("own_train.bin"),
                           short_model))));
    r = run(prompted + many + " -e " + short_model);
    EXPECT(good(r) && one_line(r.err) && contains(r.err, "9 tokens, and the model's context is 8"));
    r = run(prompted + few + " -e " + short_model);
    EXPECT(good(r) && r.err.empty());
    r = run(prompted + "x -e L1C32H2T8");
    EXPECT(good(r) && one_line(r.err) && contains(r.err, "-e L1C32H2T8 describes a model whose weights are random"));
}

static double number_after(const std::string& text, const std::string& what) {
    const size_t at = text.rfind(what);
    return at == text.npos ? NAN : atof(text.c_str() + at + what.size());
}

static void bits() {
    start_test("the bytes of targets, by hand");
    Tokenizer tok;
    set_vocabulary(tok, {"a", "bcd", "", "ef"});
    const int targets[] = {0, 1, 1, 2, 3, 4, 0, 77};  // 4: <|endoftext|>, 77: none
    EXPECT(bytes_of_targets(tok, targets, 8) == 1 + 3 + 3 + 0 + 2 + 0 + 1 + 0);
    EXPECT(bytes_of_targets(tok, targets, 0) == 0);
    EXPECT(std::fabs(bits_per_byte(10 * std::log(2.0), 5) - 2) < 1e-12);
    EXPECT(is_tokenizer_of(tok, 5) && is_tokenizer_of(tok, 128) && !is_tokenizer_of(tok, 4) &&
           !is_tokenizer_of(tok, 129) && !is_tokenizer_of(Tokenizer(), 5));
    start_test("bits per byte of a run: the loss of all targets over their bytes, counted in the shard");
    std::string documents;
    for (int i = 0; i < 50; i++) documents += made_up_text(400) + "\n---\n";
    write_whole(dir("documents.txt"), documents);
    EXPECT(good(tokenize("--train-vocab 600 --split-on --- --val-split tail --val-fraction 0.2 " +
                         dir("documents.txt") + " -o " + dir("bits"))));
    Tokenizer own;
    tokenizer_load(own, dir("bits_tokenizer.bin"), false);
    const std::vector<int> val = shard(dir("bits_val.bin"));
    for (const int windows : {12, -1}) {
        const size_t all = (val.size() - 1) / 16, n = windows < 0 ? all : (size_t)windows;
        double bytes = 0;
        for (size_t i = 1; i <= n * 16; i++)
            bytes += val[i] == own.end_of_text ? 0 : (double)own.bytes_of[val[i]].size();
        const std::string flags = data("bits") + "-e L2C32H2T16 -m " + std::to_string(windows < 0 ? -1 : 3);
        const Outcome r = train(flags);
        const double loss = number_after(r.out, "val loss "), printed = number_after(r.out, "bits per byte ");
        const double expected = loss * (double)(n * 16) / std::log(2.0) / bytes;
        if (!EXPECT(good(r) && std::fabs(printed - expected) < 1e-4)) printf("    %f, not %f\n", printed, expected);
        EXPECT(contains(r.out, format("bits per byte %.4f\n", printed)));
    }
    EXPECT(std::count(val.begin(), val.end(), own.end_of_text) > 0);
    start_test("the same for any B and any number of processes; main.log is as it was");
    const std::string flags = data("bits") + "-e L2C32H2T16 -m -1 -x 0 ";
    const double one = number_after(train(flags).out, "bits per byte ");
    EXPECT(one > 0 && number_after(train(flags + "-b 7").out, "bits per byte ") == one);
    const std::string meet = dir("meet"), more = "-pn 2 -pi fs -pf " + meet + " --comm-timeout 60 -o " + dir("two");
    std::filesystem::create_directories(meet);
    const std::string command = "./train_gpt2_cpu -b 2 -t 16 --threads 1 -s 0 -v 2 ";
    const pid_t second = start(command + flags + more + " -pr 1", "second");
    const Outcome first = run(command + flags + more + " -pr 0");
    EXPECT(good(first) && good(finish(second, "second")) && number_after(first.out, "bits per byte ") == one);
    EXPECT(good(train(data("bits") + "-e L2C32H2T16 -o " + dir("logged"))));
    EXPECT(!contains(read_whole(dir("logged/main.log")), "b") && contains(read_whole(dir("logged/main.log")), "tel:"));
    start_test("not where the vocabulary is not the model's");
    EXPECT(!contains(run(tiny_run("./train_gpt2_cpu", "-x 1 -v 1")).out, "bits per byte"));
    start_test("the model of token frequencies says both");
    const Outcome unigram =
        run("build/unigram " + dir("bits_train.bin") + " " + dir("bits_val.bin") + " " + dir("bits_tokenizer.bin"));
    double loss = 0, per_byte = 0, bytes = 0;
    sscanf(unigram.out.c_str(), "%lf %lf", &loss, &per_byte);
    for (int id : val) bytes += id == own.end_of_text ? 0 : (double)own.bytes_of[id].size();
    EXPECT(std::fabs(per_byte - loss * (double)val.size() / std::log(2.0) / bytes) < 2e-4);
    EXPECT(run("build/unigram " + dir("bits_train.bin") + " " + dir("bits_val.bin") + " 600").out ==
           unigram.out.substr(0, unigram.out.find(' ')) + "\n");
}

int main() {
    make_test_folder();
    set_vocabulary(bytes_only, byte_tokens());
    learning();
    program();
    mistakes();
    finding();
    bits();
    return report_and_clean();
}
