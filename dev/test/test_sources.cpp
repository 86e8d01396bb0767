// Several sources of training data with weights: which windows come when, that a run which is
// stopped, or split among processes, reads the same ones, and what is refused.
#include "dev/test/masks.h"
#include "dev/test/several.h"
#include "llmc/checkpoint/checkpoint_files.h"
#include "llmc/data/dataloader.h"

// A shard of `windows` windows of 8 tokens; the first token of window w is first + w.
static void write_source(const std::string& name, int first, int windows) {
    std::vector<uint16_t> tokens(8 * windows + 1, 7);
    for (int w = 0; w < windows; w++) tokens[8 * w] = (uint16_t)(first + w);
    write_tokens(dir(name), tokens.data(), (int64_t)tokens.size());
}
static std::string two_sources() { return dir("a*.bin") + ":0.7," + dir("b.bin") + ":0.3"; }

// The first token of each of a run's windows from `begin` on.
static std::vector<int> windows_of(const std::string& sources, int64_t begin, int64_t end, bool shuffle) {
    DataLoader loader;
    dataloader_open(loader, "-i", sources, 8, 1000, 42, shuffle);
    std::vector<int> first;
    for (int64_t w = begin; w < end; w++) {
        int x[8], y[8];
        load_window(loader, w, x, y);
        first.push_back(x[0]);
    }
    return first;
}

static void turns() {
    start_test("turns: whole numbers that add up to all, at least one each, in proportion to the weights");
    EXPECT((share_turns({{"a", 0.7}, {"b", 0.3}}) == std::vector<int64_t>{700, 300}));
    EXPECT((share_turns({{"a", 7}, {"b", 3}}) == std::vector<int64_t>{700, 300}));
    EXPECT((share_turns({{"a", 1}, {"b", 1}, {"c", 1}}) == std::vector<int64_t>{334, 333, 333}));
    EXPECT((share_turns({{"a", 1e-9}, {"b", 1}, {"c", 1e-9}}) == std::vector<int64_t>{1, 998, 1}));
    EXPECT(share_turns({{"a", 5}}) == std::vector<int64_t>{1000});
    start_test("at every place each source has had its share, to one window");
    for (const std::vector<double>& weights :
         {std::vector<double>{0.7, 0.3}, {1, 2, 3, 4}, {0.999, 0.001}, {1, 1, 1}}) {
        std::vector<SourcePattern> patterns;
        for (double weight : weights) patterns.push_back({"x", weight});
        std::vector<DataSource> sources(weights.size());
        for (size_t s = 0; s < sources.size(); s++) sources[s].turns = share_turns(patterns)[s];
        const std::vector<SourceTurn> dealt = deal_turns(sources);
        std::vector<int64_t> had(sources.size());
        bool even = dealt.size() == (size_t)TURNS;
        for (int64_t t = 0; t < (int64_t)dealt.size(); t++) {
            const size_t s = dealt[t].source;
            even = even && dealt[t].before == had[s]++;
            for (size_t i = 0; i < sources.size(); i++)
                even = even && std::abs(sources[i].turns * (t + 1) - TURNS * had[i]) < TURNS &&
                       windows_from(sources, dealt, i, t + 1) == had[i] &&
                       windows_from(sources, dealt, i, TURNS + t + 1) == had[i] + sources[i].turns;
        }
        EXPECT(even);
    }
}

static void order() {
    write_source("a0.bin", 100, 40), write_source("a1.bin", 140, 25), write_source("b.bin", 500, 20);
    start_test("without shuffling both sources come in sequence; each begins again when it is through");
    const std::vector<int> plain = windows_of(two_sources(), 0, 3000, false);
    int a = 0, b = 0;
    bool in_sequence = true;
    for (int first : plain)
        in_sequence = in_sequence && (first < 500 ? first == 100 + a++ % 65 : first == 500 + b++ % 20);
    EXPECT(in_sequence && a == 2100 && b == 900);
    start_test("with shuffling every epoch of a source has each of its windows once, in another order");
    const std::vector<int> shuffled = windows_of(two_sources(), 0, 3000, true);
    std::vector<int> of_a, of_b;
    for (int first : shuffled) (first < 500 ? of_a : of_b).push_back(first);
    const auto epochs_of = [](const std::vector<int>& windows, int first, int all) {
        std::vector<int> expected(all), before;
        std::iota(expected.begin(), expected.end(), first);
        for (size_t at = 0; at + all <= windows.size(); at += all) {
            std::vector<int> epoch(windows.begin() + at, windows.begin() + at + all), sorted = epoch;
            std::sort(sorted.begin(), sorted.end());
            if (sorted != expected || epoch == before || epoch == expected) return false;
            before = epoch;
        }
        return true;
    };
    EXPECT(epochs_of(of_a, 100, 65) && epochs_of(of_b, 500, 20));
    start_test("window w is the same wherever reading begins");
    for (int64_t begin : {1, 699, 1234, 2999})
        EXPECT(windows_of(two_sources(), begin, 3000, true) ==
               std::vector<int>(shuffled.begin() + begin, shuffled.end()));
    start_test("one source with a weight is the pattern without one");
    EXPECT(windows_of(dir("a*.bin") + ":3", 0, 300, true) == windows_of(dir("a*.bin"), 0, 300, true));
    start_test("a name with colons and commas that is there is no list of sources");
    write_source("b:1,c:2", 900, 4);
    EXPECT((windows_of(dir("b:1,c:2"), 0, 4, false) == std::vector<int>{900, 901, 902, 903}));
}

// A tiny run on the sources of the tests' own data: 93 windows each.
static std::string mixed(const std::string& weights, const std::string& more) {
    const size_t colon = weights.find(':');
    return tiny_run("./train_gpt2_cpu", "-i " + dir("train_0.bin") + ":" + weights.substr(0, colon) + "," +
                                            dir("train_1.bin") + ":" + weights.substr(colon + 1) + " " + more);
}
static std::string into(const std::string& name) { return "-o " + dir(name) + " "; }

static void runs() {
    const std::string flags = "-x 40 -d 96 -b 2 -l 3e-3 -n 13 ";
    start_test("a run that is stopped and goes on is the run that was not, in all its records");
    const Outcome whole = run(mixed("3:1", flags + into("whole")));
    EXPECT(passed(whole) && contains(whole.out, "75.0% of the windows; of its 93, 180 are taken, 1.94 epochs"));
    EXPECT(passed(run(mixed("3:1", flags + into("parts") + "-x 13"))));
    EXPECT(passed(run(mixed("0.75:0.25", flags + into("parts") + "-y 1"))));
    EXPECT(passed(run("./train_gpt2_cpu -y 1 -x 44 " + into("parts"))));
    EXPECT(passed(run("./train_gpt2_cpu -y 1 -x 44 " + into("whole"))));
    EXPECT(same_files(model_path(dir("whole"), 44), model_path(dir("parts"), 44)));
    start_test("any B and number of processes trains on the same windows");
    EXPECT(agree(run(mixed("3:1", flags + "-b 6")), whole, 40, 1e-5, 1e-4));
    for (int n : {2, 3})
        EXPECT(agree(run(MPIRUN + format("-np %d ", n) + mixed("3:1", flags + "-b 1")), whole, 40, 1e-5, 1e-4));
    EXPECT(!agree(run(mixed("1:1", flags)), whole, 40, 1e-5, 1e-4));
    start_test("a run does not go on with other shares, or with its sources exchanged");
    const std::string again = flags + into("parts") + "-y 1 -x 50 ";
    EXPECT(refused(run(mixed("1:1", again)), 2, "is other data than the run to resume"));
    EXPECT(refused(run(mixed("1:3", again)), 2, "is other data than the run to resume"));
    EXPECT(refused(run("./train_gpt2_cpu " + again + "-i '" + dir("train_*.bin") + "'"), 2, "is other data"));
    start_test("loss masks of sources: a pattern for each, also from run.json; one that is not used is named with all");
    for (const char* name : {"train_0.bin", "train_1.bin"}) write_mask(dir(name), [](int64_t i) { return i % 3 > 0; });
    const std::string masks = dir("train_0.mask") + "," + dir("train_1.mask");
    EXPECT(passed(run(mixed("3:1", flags + into("masked") + "-x 3 --loss-mask " + masks))));
    const Outcome more = run("./train_gpt2_cpu -y 1 -x 5 " + into("masked"));
    EXPECT(passed(more) && contains(more.out, "loss mask: 2,000 of the tokens count"));
    const Outcome unused = run(mixed("3:1", "-x 1"));
    EXPECT(passed(unused) && one_line(unused.err) && contains(unused.err, "--loss-mask " + masks + " counts"));
    for (const char* name : {"train_0.mask", "train_1.mask"}) unlink(dir(name).c_str());
    start_test("--plan counts the data of all sources");
    EXPECT(contains(run(mixed("3:1", "--plan -x 30 -d 96")).out, "epochs of 3,000 tokens"));
}

static void mistakes() {
    start_test("sources with and without weights, weights of 0, too few windows, weights for -j: one sentence");
    const auto of = [](const std::string& sources) {
        return run(tiny_run("./train_gpt2_cpu", "-x 1 -i '" + sources + "'"));
    };
    const std::string a = dir("train_0.bin"), b = dir("train_1.bin");
    EXPECT(refused(of(a + ":0.5," + b), 2, "`" + b + "` has no weight"));
    EXPECT(refused(of(a + ":0.5," + b + ":x"), 2, "has no weight"));
    EXPECT(refused(of(a + ":0.5," + b + ":0"), 2, "the weight of " + b + " is 0"));
    EXPECT(refused(of(a + ":1," + b + ":-1"), 2, "the weight of " + b + " is -1"));
    EXPECT(refused(of(a + ":1," + dir("none*.bin") + ":1"), 1, "none*.bin matches no file"));
    write_tokens(dir("short.bin"), std::vector<uint16_t>(9, 3).data(), 9);
    EXPECT(refused(of(a + ":1," + dir("short.bin") + ":1"), 1, "short.bin is too short"));
    EXPECT(refused(run(tiny_run("./train_gpt2_cpu", "-x 1 -v 1 -j " + a + ":1," + b + ":1")), 1, "-j "));
    start_test("sources of different vocabularies are refused, of one they are not");
    for (const char* name : {"p", "q"}) {
        write_whole(dir(std::string(name) + ".txt"), std::string(4000, *name) + " words and more words");
        EXPECT(passed(run("./tokenize --bytes 1 " + dir(std::string(name) + ".txt -o ") + dir(name))));
    }
    const std::string both = dir("p_train.bin") + ":1," + dir("q_train.bin") + ":1",
                      bytes = "./train_gpt2_cpu -e L1C16H1T16 -b 2 -t 16 -x 1 -v 0 -s 0 -i " + both;
    const Outcome same = run(bytes);
    EXPECT(passed(same) && contains(same.out, ", V 257: "));
    EXPECT(passed(run("./tokenize --train-vocab 260 " + dir("q.txt") + " -o " + dir("q"))));
    EXPECT(refused(run(bytes), 2, "of different vocabularies"));
}

int main() {
    make_test_folder();
    turns();
    order();
    runs();
    mistakes();
    return report_and_clean();
}
