// Evaluation: the perplexity of texts, against token shards and by counting; HellaSwag alone.
#include "dev/test/several.h"
#include "dev/test/tokenized.h"
#include "llmc/base/json_text.h"

// What a run with a tokenizer of 257 tokens, one per byte, prints and computes.
static std::string bytes_run(const std::string& more) {
    return "./train_gpt2_cpu -e L2C32H2T16V257 --tokenizer " + dir("bytes_tokenizer.bin") +
           " --threads 2 -s 0 -x 0 -b 3 " + more;
}

struct Perplexity {
    double loss = NAN, bits = NAN, token = NAN, word = NAN, byte = NAN;
    long long tokens = -1, words = -1, bytes = -1;
};
static Perplexity perplexity_of(const Outcome& r) {
    Perplexity p;
    const size_t at = r.out.find("val loss");
    if (r.status != 0 || at == r.out.npos) printf("    status %d: %s%s\n", r.status, r.out.c_str(), r.err.c_str());
    if (at == r.out.npos) return p;
    sscanf(r.out.c_str() + at,
           "val loss %lf bits per byte %lf perplexity: %lf per token, %lf per word, %lf per byte (%lld token%*[s,] "
           "%lld word%*[s,] %lld byte",
           &p.loss, &p.bits, &p.token, &p.word, &p.byte, &p.tokens, &p.words, &p.bytes);
    return p;
}
static bool near(double a, double b, double tolerance) { return std::fabs(a - b) <= tolerance * std::fabs(b); }

// The three perplexities are exp(loss sum / n) for these numbers of tokens, words and bytes.
static bool consistent(const Perplexity& p, long long tokens, long long words, long long bytes) {
    const double sum = p.loss * (double)tokens, digits = 1e-6 * (double)tokens;
    auto is = [&](double value, long long n) { return near(std::log(value), sum / (double)n, digits / (double)n); };
    return p.tokens == tokens && p.words == words && p.bytes == bytes && is(p.token, tokens) && is(p.word, words) &&
           is(p.byte, bytes) && std::fabs(p.bits - sum / std::log(2.0) / (double)bytes) < 1e-4;
}

static std::string evaluated(const Outcome& r) { return r.out.substr(std::min(r.out.find("val loss"), r.out.size())); }

static std::string shard_of(const std::vector<int>& ids, size_t begin, size_t end) {
    const std::vector<uint16_t> tokens(ids.begin() + begin, ids.begin() + end);
    write_tokens(dir("part.bin"), tokens.data(), (int64_t)tokens.size());
    return dir("part.bin");
}
static double loss_of(const std::string& flags) {
    const Outcome r = run(bytes_run(flags + " -m -1"));
    return r.status == 0 ? atof(r.out.c_str() + std::min(r.out.find("val loss") + 9, r.out.size())) : NAN;
}

// -m counts windows in fours, whatever B and the number of processes are.
static void same_windows() {
    start_test("-m 3 is 12 windows: the same val loss and bits per byte for any B and number of processes");
    const std::string shard = dir("bytes_val.bin"), some = "-v 1 -m 3 -j " + shard;
    const auto validated = [&](int processes, const std::string& b, const std::string& more) {
        const std::string command = bytes_run(some + " -b " + b + " " + more);
        return evaluated(run(processes == 1 ? command : MPIRUN + format("-np %d ", processes) + command));
    };
    const std::string one = validated(1, "1", "");
    EXPECT(contains(one, "val loss ") && contains(one, "bits per byte ") && one != validated(1, "1", "-m 2"));
    for (const char* b : {"2", "3", "4", "8"}) EXPECT(validated(1, b, "") == one);
    for (int processes : {2, 3})
        for (const char* b : {"1", "4", "8"}) EXPECT(validated(processes, b, "") == one);
    start_test("these windows are the first 12; a step 0 of training validates on them as well");
    const std::vector<int> ids = ::shard(shard);
    EXPECT(near(loss_of("-j " + shard_of(ids, 0, 12 * 16 + 1)), atof(one.c_str() + 9), 1e-6));
    for (const char* b : {"1", "8"}) {
        const std::string trained = validated(1, b, "-x 1 -i " + dir("bytes_train.bin"));
        EXPECT(!one.empty() && trained.compare(0, one.size(), one) == 0);
    }
    start_test("without -m it is 80 windows, and with more than there are, all");
    EXPECT(evaluated(run(bytes_run("-v 1 -j " + shard))) == evaluated(run(bytes_run("-v 1 -m 20 -j " + shard))));
    EXPECT(evaluated(run(bytes_run("-v 1 -m -1 -j " + shard))) ==
           evaluated(run(bytes_run("-v 1 -m 9000000000000000 -j " + shard))));
}

static void counted_by_hand() {
    start_test("a text of bytes: tokens, words and bytes are those counted by hand");
    write_whole(dir("a.txt"), "  To be,\tor not\n\nto be:\xc2\xa0that is\xe2\x80\x83\xc3\xa9t\xc3\xa9 \xff.\n");
    const long long bytes = (long long)read_whole(dir("a.txt")).size();
    EXPECT(consistent(perplexity_of(run(bytes_run("-j " + dir("a.txt")))), bytes, 10, bytes));
    start_test("one byte; white space alone, which has no words");
    write_whole(dir("one.txt"), "x");
    EXPECT(consistent(perplexity_of(run(bytes_run("-j " + dir("one.txt")))), 1, 1, 1));
    write_whole(dir("space.txt"), " \n");
    const Outcome space = run(bytes_run("-j " + dir("space.txt")));
    EXPECT(space.status == 0 && contains(space.out, "nan per word") && contains(space.out, "0 words"));
}

// The loss of a text is that of its tokens in a shard; of its last window, that of shards of their
// own.
static void as_shards() {
    start_test("the loss is that of the same tokens in shards; the last window begins earlier, none counts twice");
    const std::string text = read_whole("dev/data/shakespeare/sonnets.txt").substr(0, 1003);
    write_whole(dir("sonnets.txt"), text);
    std::vector<int> ids{256};
    Tokenizer bytes;
    tokenizer_load(bytes, dir("bytes_tokenizer.bin"));
    encode(bytes, text, ids);
    EXPECT(ids.size() == 1004);
    // 62 windows of 16; a last one of 16, of which the first 5 targets are those of the window
    // before
    const double head = loss_of("-j " + shard_of(ids, 0, 993)), last = loss_of("-j " + shard_of(ids, 987, 1004)),
                 twice = loss_of("-t 5 -j " + shard_of(ids, 987, 993));
    const Outcome all = run(bytes_run("-j " + dir("sonnets.txt")));
    const Perplexity p = perplexity_of(all);
    EXPECT(near(p.loss, (head * 992 + last * 16 - twice * 5) / 1003, 1e-6) && p.tokens == 1003);
    start_test("where T divides the text, both print the same");
    EXPECT(near(perplexity_of(run(bytes_run("-t 1 -j " + dir("sonnets.txt")))).loss,
                loss_of("-t 1 -j " + shard_of(ids, 0, 1004)), 1e-12));
    start_test("any B, and several processes: the same");
    for (const char* b : {"-b 1", "-b 2", "-b 100"})
        EXPECT(evaluated(run(bytes_run("-j " + dir("sonnets.txt") + " " + b))) == evaluated(all));
    for (int n : {2, 3})
        EXPECT(evaluated(run(MPIRUN + format("-np %d ", n) + bytes_run("-j " + dir("sonnets.txt")))) == evaluated(all));
}

// Several texts, texts as validation data of a run that trains, and parts of a text.
static void ways_to_use_texts() {
    start_test("several texts: each is a document, none is cut or joined");
    write_whole(dir("t1.txt"), "One text of its own.");
    write_whole(dir("t2.txt"), "And another, somewhat longer than the first.\n");
    const Perplexity a = perplexity_of(run(bytes_run("-j " + dir("t1.txt")))),
                     b = perplexity_of(run(bytes_run("-j " + dir("t2.txt")))),
                     both = perplexity_of(run(bytes_run("-j '" + dir("t?.txt") + "'")));
    EXPECT(consistent(both, 20 + 45, 5 + 7, 20 + 45));
    EXPECT(near(both.loss, (a.loss * 20 + b.loss * 45) / 65, 1e-6));
    start_test("a run that trains validates on a text; -m takes a part of it, whose perplexity is not shown");
    const std::string train = "-x 2 -v 1 -i " + dir("bytes_train.bin") + " -l 1e-2 ";
    const Outcome trained = run(bytes_run(train + "-o " + dir("trained") + " -m -1 -j " + dir("sonnets.txt")));
    EXPECT(trained.status == 0 && contains(trained.out, "perplexity: ") &&
           near(atof(evaluated(trained).c_str() + 9), perplexity_of(run(bytes_run("-j " + dir("sonnets.txt")))).loss,
                1e-9));
    const Outcome part = run(bytes_run(train + "-m 2 -j " + dir("sonnets.txt")));
    EXPECT(part.status == 0 && contains(part.out, "val loss") && !contains(part.out, "perplexity"));
    start_test("-e DIR evaluates a text by the vocabulary of the run; a resumed run warns of other data");
    const Outcome alone = run("./train_gpt2_cpu -e " + dir("trained") + " -x 0 -s 0 -j " + dir("sonnets.txt"));
    const std::string last = trained.out.substr(std::min(trained.out.rfind("val loss"), trained.out.size()));
    EXPECT(!last.empty() && evaluated(alone) == last.substr(0, evaluated(alone).size()) && alone.err.empty());
    const Outcome other = run("./train_gpt2_cpu -o " + dir("trained") + " -y 1 -x 3 -j " + dir("t1.txt"));
    EXPECT(other.status == 0 && contains(other.err, "cannot be compared") && contains(other.out, "perplexity: "));
}

static void refusals() {
    start_test("texts that cannot be evaluated: one sentence");
    write_whole(dir("empty.txt"), "");
    write_whole(dir("zero.txt"), std::string("a\0b", 3));
    (void)!mkdir(dir("folder.txt").c_str(), 0777);
    EXPECT(refused(run(bytes_run("-j " + dir("empty.txt"))), 1, "empty.txt is empty"));
    EXPECT(refused(run(bytes_run("-j " + dir("zero.txt"))), 1, "zero.txt has a zero byte"));
    EXPECT(refused(run(bytes_run("-j " + dir("nothing.txt"))), 1, "nothing.txt"));
    EXPECT(refused(run(bytes_run("-j " + dir("folder.txt"))), 1, "folder.txt"));
    if (geteuid() != 0) {
        chmod(dir("one.txt").c_str(), 0);
        EXPECT(refused(run(bytes_run("-j " + dir("one.txt"))), 1, "one.txt"));
    }
    start_test("tokens that the model does not have, a tokenizer that is not there, -i with a text: refused");
    const std::string text = " -j " + dir("sonnets.txt");
    EXPECT(refused(run(bytes_run("-e L2C32H2T16V256" + text)), 2, "257"));
    EXPECT(refused(run("./train_gpt2_cpu -x 0 -e L2C32H2T16V257" + text), 2, "50257"));
    EXPECT(refused(run(bytes_run("--tokenizer " + dir("none.bin") + text)), 1, "none.bin"));
    EXPECT(refused(run(bytes_run("-x 1 -i " + dir("sonnets.txt"))), 1, "tokenize TEXT"));
    EXPECT(refused(run(bytes_run("--loss-mask x.mask" + text)), 2, "--loss-mask x.mask has no effect on -j"));
}

static void hellaswag_alone() {
    start_test("HellaSwag alone: with -v 0, and where the default validation data is not there");
    write_hellaswag(dir("hella.bin"));
    const std::string flags = " -h 1 --hellaswag-data " + dir("hella.bin");
    const Outcome alone = run(bytes_run("-v 0" + flags));
    EXPECT(alone.status == 0 && contains(alone.out, "\nHellaSwag: ") && !contains(alone.out, "val loss"));
    const std::string elsewhere = "cd " + dir("bytes_folder") + " && ";
    (void)!mkdir(dir("bytes_folder").c_str(), 0777);
    EXPECT(run("cp train_gpt2_cpu " + dir("bytes_folder")).status == 0);
    const Outcome bare = run("sh -c '" + elsewhere + bytes_run(flags) + "'");
    auto answers = [](const Outcome& r) { return r.out.substr(std::min(r.out.find("HellaSwag:"), r.out.size())); };
    EXPECT(bare.status == 0 && !contains(bare.out, "val loss") && answers(bare) == answers(alone));
    start_test("HellaSwag without its file, and where it would never be evaluated: one line says so");
    EXPECT(refused(run(bytes_run("-v 0 -h 1 --hellaswag-data " + dir("none.bin"))), 1, "none.bin is not there"));
    const Outcome never = run(bytes_run("-x 1 -v 0 -i " + dir("bytes_train.bin") + flags));
    EXPECT(never.status == 0 && one_line(never.err) && contains(never.err, "-v 0"));
}

static void one_loss_one_text() {
    start_test("a validation loss reads the same on its line, in evals.jsonl and as the best of the run");
    const std::string out = dir("many");
    const Outcome r = run(tiny_run("./train_gpt2_cpu", "-e L1C16H1T16V50257 -x 150 -v 1 -m 1 -l 1e-4 -o " + out));
    std::vector<std::string> shown, recorded;
    const auto collect = [](std::vector<std::string>& into, const std::string& text, const std::string& before) {
        for (size_t at = 0; (at = text.find(before, at)) != text.npos;)
            into.push_back(format("%f", atof(text.c_str() + (at += before.size()))));
    };
    collect(shown, r.out, "\nval loss "), collect(recorded, read_whole(out + "/evals.jsonl"), "\"val_loss\": ");
    EXPECT(shown.size() == 151 && shown == recorded);
    const std::string best = *std::min_element(shown.begin(), shown.end());
    EXPECT(contains(r.out, "; best validation loss " + best + ", at step "));
    EXPECT(recorded_number(10.76385049996) == 10.7638505 && std::isnan(recorded_number(NAN)));
}

int main() {
    prepare_tokenize_tests();
    if (run("./tokenize --bytes 1 dev/data/shakespeare/sonnets.txt -o " + dir("bytes")).status != 0) return 1;
    same_windows();
    counted_by_hand();
    as_shards();
    ways_to_use_texts();
    refusals();
    one_loss_one_text();
    hellaswag_alone();
    return report_and_clean();
}
