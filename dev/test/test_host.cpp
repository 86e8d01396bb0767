// What both trainers share: tokenizer, random numbers, schedules, sampling, data order, layouts,
// checksums.
#include <map>
#include <set>
#include <sstream>
#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/base/logger.h"
#include "llmc/run/sampler.h"
#include "llmc/optim/schedule.h"
#include "llmc/data/tokenizer.h"
#include "llmc/plan/plan_time.h"

static const std::string FIXTURES = "dev/test/fixtures/";

static std::string read_whole(const std::string& path) {
    FileReader file(path);
    std::string bytes(file.size_bytes, '\0');
    file.read(bytes.data(), bytes.size(), "the file");
    return bytes;
}

static void tokenizer_tests() {
    Tokenizer tok;
    tokenizer_load(tok, "dev/data/gpt2_tokenizer.bin");
    auto round_trip = [&](const std::string& text) {
        std::vector<int> ids;
        encode(tok, text, ids);
        std::string back;
        for (int id : ids) back += decode(tok, id);
        return back == text;
    };
    start_test("tokenizer: the recorded output of tiktoken on a nasty text");
    const std::string text = read_whole(FIXTURES + "tokenizer_text.bin"),
                      recorded = read_whole(FIXTURES + "tokenizer_ids.bin");
    std::vector<int> ids;
    encode(tok, text, ids);
    bool same = ids.size() * 2 == recorded.size();
    for (size_t i = 0; same && i < ids.size(); i++)
        same = ids[i] == ((unsigned char)recorded[2 * i] | (unsigned char)recorded[2 * i + 1] << 8);
    EXPECT(same);
    EXPECT(round_trip(text));
    start_test("tokenizer: any bytes come back");
    std::string bytes;
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b += 5) bytes += (char)a, bytes += (char)b, bytes += " x\xff"[b % 4];
    EXPECT(round_trip(bytes));
    EXPECT(round_trip(std::string("\xed\xa0\x80\xf4\x90\x80\x80\xc0\x80\xe2\x82", 11)));
    start_test("tokenizer: known ids; special tokens are text like any other");
    auto ids_of = [&](const char* s) {
        std::vector<int> out;
        encode(tok, s, out);
        return out;
    };
    EXPECT((ids_of("Hello world") == std::vector<int>{15496, 995}));
    EXPECT(ids_of("<|endoftext|>").size() > 1);
    EXPECT(ids_of("").empty());
    start_test("tokenizer: a long run of one letter merges the same by heap and by search");
    for (int n : {63, 64}) {
        std::vector<int> slow, fast;
        const std::string run(n, 'q');
        merge_short(tok, run, slow), merge_long(tok, run, fast);
        EXPECT(slow == fast);
    }
}

static void random_tests() {
    start_test("Mersenne Twister: the published first and thousandth value");
    MersenneTwister rng(5489);
    EXPECT(rng.bits32() == 3499211612u);
    for (int i = 0; i < 9998; i++) rng.bits32();
    EXPECT(rng.bits32() == 4123659995u);
    start_test("permutations are permutations, and differ by epoch");
    auto a = permutation(1000, generator_for(42, RANDOM_WINDOWS, 0, 1)),
         b = permutation(1000, generator_for(42, RANDOM_WINDOWS, 1, 1));
    EXPECT(std::set<uint32_t>(a.begin(), a.end()).size() == 1000 && a != b);
    EXPECT((a == permutation(1000, generator_for(42, RANDOM_WINDOWS, 0, 1))));
}

static void schedule_tests() {
    start_test("schedules: PyTorch's values, and those of transformers, after a warmup");
    const std::string text = read_whole(FIXTURES + "schedules.txt");
    std::map<std::string, int> after_warmup;
    for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
        char name[16];
        long long step, steps, warmup;
        double peak, frac, rate;
        if (!EXPECT(sscanf(text.c_str() + at, "%15s %lld %lld %lld %lf %lf %lf", name, &step, &steps, &warmup, &peak,
                           &frac, &rate) == 7))
            break;
        EXPECT(std::fabs(learning_rate_at(name, step, steps, warmup, peak, frac) - rate) <= 1e-10 * rate + 1e-14);
        if (warmup > 0 && step > warmup) after_warmup[name]++;
    }
    for (const Schedule& schedule : SCHEDULES) EXPECT(after_warmup[schedule.name] > 70);
    EXPECT(learning_rate_at("constant", 0, 10, 4, 1.0, 0.1) == 0.25 &&
           learning_rate_at("constant", 9, 10, 4, 1.0, 0.1) == 1.0);
}

static void sampling_tests() {
    start_test("sampling: the probabilities of Hugging Face's temperature, top-k and top-p");
    const std::string text = read_whole(FIXTURES + "sampling.txt");
    const char* p = text.c_str();
    int cases = 0;
    for (char* end; *p && *p != '\n'; p++, cases++) {
        auto next = [&] {
            double v = strtod(p, &end);
            p = end;
            return v;
        };
        const int V = (int)next();
        const double temperature = next(), top_k = next(), top_p = next();
        std::vector<float> logits(V);
        std::vector<double> want(V), got;
        for (float& l : logits) l = (float)next();
        for (double& w : want) w = next();
        sampling_probabilities(got, logits.data(), V, temperature, (int64_t)top_k, top_p);
        EXPECT(relative_error(got.data(), want.data(), V) < 1e-6);
    }
    EXPECT(cases == 6);
    start_test("sampling: the largest logit, wherever it is");
    for (int64_t n = 1; n <= 70; n++)
        for (int64_t at = 0; at < n; at++) {
            std::vector<float> logits(n, -5.0f);
            logits[at] = -3.0f;
            EXPECT(largest(logits.data(), n) == -3.0f);
        }
    start_test("sampling: the coin picks by cumulative probability, never a token of probability 0");
    EXPECT(pick_token({0.25, 0.0, 0.75}, 0.24) == 0 && pick_token({0.25, 0.0, 0.75}, 0.25) == 2 &&
           pick_token({0.5, 0.499999, 0.0}, 0.9999999) == 1);
}

static void data_tests() {
    const std::string prefix = format("/tmp/gpt2_test_%d_", (int)getpid());
    std::vector<uint16_t> tokens(101);
    for (int shard = 0; shard < 3; shard++) {
        for (size_t i = 0; i < tokens.size(); i++) tokens[i] = (uint16_t)(shard * 1000 + i);
        // 10, 9, 9 windows of 10
        write_tokens(prefix + std::to_string(shard) + ".bin", tokens.data(), tokens.size() - shard);
    }
    start_test("data order: every window once an epoch, a new order each epoch, targets one ahead");
    DataLoader loader;
    dataloader_open(loader, "-i", prefix + "*.bin", 10, 50257, 42, true);
    EXPECT(loader.total_windows == 28 && loader.total_tokens == 300);
    int x[10], y[10];
    std::vector<int> first[2];
    for (int w = 0; w < 56; w++) {
        load_window(loader, w, x, y);
        first[w / 28].push_back(x[0]);
        for (int t = 0; t < 10; t++) EXPECT(x[t] == x[0] + t && y[t] == x[t] + 1);
    }
    EXPECT(std::set<int>(first[0].begin(), first[0].end()).size() == 28 &&
           std::set<int>(first[1].begin(), first[1].end()).size() == 28 && first[0] != first[1]);
    load_window(loader, 17, x, y);
    EXPECT(x[0] == first[0][17]);  // a pure function of the window's number
    start_test("data order: --shuffle 0 is the order of the files");
    DataLoader plain;
    dataloader_open(plain, "-i", prefix + "*.bin", 10, 50257, 42, false);
    for (int w = 0; w < 10; w++) load_window(plain, w, x, y), EXPECT(x[0] == w * 10);
    load_window(plain, 10, x, y);
    EXPECT(x[0] == 1000);
    for (int shard = 0; shard < 3; shard++) unlink((prefix + std::to_string(shard) + ".bin").c_str());
}

static void layout_tests() {
    start_test("layout: tensors aligned, apart, buckets a multiple of the processes, for any shape");
    for (GPT2Config c : {GPT2Config{}, GPT2Config{5, 97, 128, 3, 1, 7}, GPT2Config{33, 50257, 50304, 2, 25, 1600}})
        for (int64_t processes : {1, 2, 3, 8}) {
            ParameterLayout layout = parameter_layout(c, processes);
            int64_t end = 0, elems = 0;
            for (int64_t b = 0; b < layout.buckets(); b++) {
                EXPECT((layout.bucket_begin[b + 1] - layout.bucket_begin[b]) % processes == 0);
                for (int i = 0; i < NUM_TENSORS; i++) {
                    if (TENSORS[i].per_layer != (b < c.L)) continue;
                    EXPECT(layout.offset(i, b < c.L ? b : 0) >= end && layout.offset(i, b < c.L ? b : 0) % 16 == 0);
                    end = layout.offset(i, b < c.L ? b : 0) + tensor_elems(i, c);
                    elems += tensor_elems(i, c);
                }
                EXPECT(end <= layout.bucket_begin[b + 1]);
            }
            EXPECT(elems - (c.Vp - c.V) * c.C == parameter_count(c));
        }
    EXPECT(parameter_count(GPT2Config{}) == 124439808);
    start_test("descriptors");
    EXPECT(config_from_descriptor("d48").NH == 25 && config_from_descriptor("gpt2:d36").C == 1280 &&
           config_from_descriptor("gpt3:c768").maxT == 2048);
    GPT2Config c = config_from_descriptor("L6C384H6T256V512");
    EXPECT(c.L == 6 && c.C == 384 && c.NH == 6 && c.maxT == 256 && c.V == 512 && c.Vp == 512);
    start_test("checksum: one bit, one byte more, one block moved: another sum");
    std::string data(1000, 'x');
    auto sum = [](const std::string& s, size_t cut) {
        Checksum c;
        c.add(s.data(), cut), c.add(s.data() + cut, s.size() - cut);
        return c.value();
    };
    const uint64_t whole = sum(data, 0);
    EXPECT(sum(data, 7) == whole && sum(data, 999) == whole);
    EXPECT(sum(data + 'x', 0) != whole && sum(data + std::string(1, '\0'), 0) != whole);
    data[500] ^= 1;
    EXPECT(sum(data, 0) != whole);
    start_test("outlier detector: nan until the window is full, then deviations");
    OutlierDetector detector;
    for (int i = 0; i < OUTLIER_WINDOW; i++) EXPECT(std::isnan(detector.z_score(i % 2 ? 1.0 : -1.0)));
    EXPECT(std::fabs(detector.z_score(3.0) - 3.0) < 1e-9);
}

static void file_tests() {
    start_test("a link or a leftover in the way of a file being written: replaced, never followed");
    char pattern[] = "/tmp/gpt2_files_XXXXXX";
    const std::string folder = mkdtemp(pattern), victim = folder + "/victim", target = folder + "/target";
    auto write_file = [](const std::string& path, const char* text) {
        FileWriter file(path);
        file.write(text, strlen(text));
        file.commit();
    };
    auto text_of = [](const std::string& path) {
        FileReader file(path);
        std::string text(file.size_bytes, '\0');
        file.read(text.data(), text.size(), "the text");
        return text;
    };
    write_file(victim, "precious");
    EXPECT(symlink(victim.c_str(), (target + ".tmp").c_str()) == 0);
    write_file(target, "mine");
    EXPECT(text_of(victim) == "precious" && text_of(target) == "mine" && !file_exists(target + ".tmp"));
    EXPECT(link(victim.c_str(), (target + ".tmp").c_str()) == 0);
    write_file(target, "again");
    EXPECT(text_of(victim) == "precious" && text_of(target) == "again");
    for (const std::string& path : {victim, target}) unlink(path.c_str());
    rmdir(folder.c_str());
}

static void format_tests() {
    auto by_printf = [](auto... values) {
        char text[400];
        snprintf(text, sizeof(text), values...);
        return std::string(text);
    };
    start_test("format: what printf prints, of every conversion, flag, width and precision");
    const int64_t least = INT64_MIN;
    for (const char* form : {"%d", "%5d|", "%-5d|", "%05d", "%+d", "% d", "%.3d", "%x", "%#X", "%o", "%u", "%i"})
        for (int n : {0, 7, 65, -1, INT32_MIN, INT32_MAX}) EXPECT(format(form, n) == by_printf(form, n));
    for (const char* form : {"%lld", "%16lld|", "%016llx", "%llu", "%ld", "%zd", "%jd"})
        for (long long n : {0LL, 123456789012LL, -1LL, (long long)least})
            EXPECT(format(form, n) == by_printf(form, n) && format(form, (int64_t)n) == by_printf(form, n));
    for (const char* form : {"%g", "%f", "%e", "%G", "%E", "%+.2f", "%7.6f|", "%-12.3g|", "%.17g", "%.0f", "%08.2f"})
        for (double x : {0.0, -0.0, 1.5, -2e-300, 1e300, (double)NAN, (double)INFINITY})
            EXPECT(format(form, x) == by_printf(form, x) && format(form, (float)x) == by_printf(form, (float)x));
    for (const char* form : {"%s", "%20s|", "%-20s|", "%.2s", "100 %% of %s"})
        for (const char* text : {"", "word", "per%cent %s"})
            EXPECT(format(form, text) == by_printf(form, text) &&
                   format(form, std::string(text)) == format(form, text));
    EXPECT(format("%*s|%-*d|%.*f", 6, "ab", 4, 7, 2, 1.0) == "    ab|7   |1.00");
    start_test("format: %d takes every whole number as what it is");
    EXPECT(format("%d %d %d", (size_t)-1, (uint64_t)1 << 63, least) ==
           "18446744073709551615 9223372036854775808 -9223372036854775808");
    EXPECT(format("%d %d %d %d", true, 'A', (uint8_t)200, (int16_t)-3) == "1 65 200 -3");
    EXPECT(format("%x %x %x", -1, (int64_t)-1, (uint16_t)0xfeed) == "ffffffff ffffffffffffffff feed");
    EXPECT(format("%c%c", 'a', std::string("xyz")[2]) == "az" && format("%c", '\0') == std::string(1, '\0'));
    start_test("format: a text longer than any buffer, and none");
    const std::string longer(100000, 'x');
    EXPECT(format("<%s>", longer) == "<" + longer + ">" && format("") == "" &&
           format("%s", (char*)nullptr) == "(null)");
    start_test("format: a value that does not fit its conversion is said, and all others are printed");
    auto wrong = [](const char* form, auto... values) { return format(form, values...); };  // formats.py looks away
    EXPECT(wrong("%d of %s", 1.5, "a") == "(internal: %d is given a real number) of a");
    EXPECT(wrong("%-5s %d", 3, 4) == "(internal: %-5s is given a whole number) 4");
    EXPECT(wrong("%g%g", "x", 1) == "(internal: %g is given a text)(internal: %g is given a whole number)");
    EXPECT(wrong("%d %s", 1) == "1 (internal: %s has no value)" && wrong("%*d", 1) == "(internal: %1d has no value)");
    EXPECT(wrong("a%", 1) == "a(internal: % has no end)" && wrong("%ll") == "(internal: % has no end)");
    EXPECT(wrong("%d", 1, 2) == "1(internal: more values than conversions)");
    EXPECT(wrong("%n %p", "x", "y") == "(internal: %n is given a text) (internal: %p is given a text)");
    EXPECT(wrong("%*d", "x", 1) == "(internal: %* is given a text)d(internal: more values than conversions)");
    EXPECT(wrong("%99999999999d", 1) == "(internal: %99999999999lld is too wide)");
}

static void help_tests() {
    start_test("--help has the everyday flags, --help all has all, each under the title of its group");
    const std::string everyday = help_text("program", false), all = help_text("program", true);
    auto has = [](const std::string& help, const OptionRow& row) {
        const size_t at = help.find("\n  " + names_of(row) + " "), title = help.rfind("\n\n", at);
        const std::string expected = format("\n\n%s\n", OPTION_GROUPS[row.group & ~EVERYDAY]);
        return at != help.npos && help.compare(title, expected.size(), expected) == 0;
    };
    auto words = [](const std::string& text) {
        std::istringstream in(text);
        std::string joined;
        for (std::string word; in >> word;) joined += word + " ";
        return joined;
    };
    std::set<int> groups;
    for (const OptionRow& row : option_table()) {
        EXPECT((row.group & ~EVERYDAY) < NUM_OPTION_GROUPS && has(all, row));
        EXPECT(has(everyday, row) == !!(row.group & EVERYDAY));
        EXPECT(words(all).find(words(names_of(row) + "  " + row.meaning)) != std::string::npos);
        groups.insert(row.group & ~EVERYDAY);
    }
    EXPECT((int)groups.size() == NUM_OPTION_GROUPS);
    start_test("both helps fit a terminal of 100 columns, and --help two screens");
    EXPECT(std::count(everyday.begin(), everyday.end(), '\n') <= 64);
    for (const std::string& help : {everyday, all})
        for (size_t at = 0, end; at < help.size(); at = end + 1) {
            end = help.find('\n', at);
            EXPECT(end - at <= HELP_COLUMNS);
        }
}

int main() {
    format_tests();
    help_tests();
    file_tests();
    tokenizer_tests();
    random_tests();
    schedule_tests();
    sampling_tests();
    data_tests();
    layout_tests();
    return report_tests();
}
