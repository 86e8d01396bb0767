// Files that are read beside models: tokenizer, HellaSwag, tokens. Whatever is in them, a program
// loads them or says in one sentence what is wrong: it does not crash, hang or ask for memory that
// the file does not justify.
#include <fcntl.h>
#include <sys/stat.h>
#include "dev/test/run_program.h"
#include "llmc/data/hellaswag.h"
#include "llmc/data/tokenizer.h"

static uint64_t damage_state = 88172645463325252u;
static uint64_t random_below(uint64_t n) {
    damage_state ^= damage_state << 13, damage_state ^= damage_state >> 7, damage_state ^= damage_state << 17;
    return damage_state % n;
}

// Memory that reading a damaged file of a few KB may take, beyond what the program has; not under a
// sanitizer, which maps terabytes.
static void limit_memory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const struct rlimit limit = {(rlim_t)4 << 30, (rlim_t)4 << 30};
    setrlimit(RLIMIT_AS, &limit);
#endif
}

// How many damaged files of a kind are tried. A process of AddressSanitizer takes long to begin.
#ifdef __SANITIZE_ADDRESS__
constexpr int DAMAGED_FILES = 250;
#else
constexpr int DAMAGED_FILES = 700;
#endif

// Runs the loader in a process of its own: 0 if it took the file, 1 if it refused it with one
// sentence; anything else is a fault.
template <class Load>
static int outcome(const Load& load) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        limit_memory();
        alarm(20);
        if (!freopen(dir("err").c_str(), "w", stderr)) _exit(9);
        load();
        _exit(0);
    }
    const Outcome r = finish(child);
    if (r.status == 0 || (r.status == 1 && one_line(r.err))) return r.status;
    printf("    status %d, stderr: %s\n", r.status, r.err.substr(0, 300).c_str());
    return -1;
}

static std::string header_of(int32_t magic, int32_t version, int32_t count, int32_t more) {
    Header h;
    h.value[0] = magic, h.value[1] = version, h.value[2] = count, h.value[3] = more;
    return std::string((const char*)h.value, sizeof(h.value));
}

// A tokenizer whose tokens are the bytes and random strings of one or two letters: nearly every
// split of a token is a pair.
static std::string tokenizer_of(int vocab, size_t longest, int letters) {
    std::string bytes = header_of(20240328, 2, vocab, vocab - 1);
    for (int id = 0; id < 256; id++) bytes += {(char)1, (char)id};
    for (int id = 256; id < vocab; id++) {
        const size_t length = 2 + random_below(longest - 1);
        bytes += (char)length;
        for (size_t i = 0; i < length; i++) bytes += (char)('a' + random_below(letters));
    }
    return bytes;
}

// A file with one kind of damage: a changed bit or byte, a number at its limits, a part that is
// missing, doubled or swapped.
static std::string damaged(std::string bytes) {
    const int64_t extremes[] = {0, 1, -1, 2, 255, 256, 257, 32767, 65535, 65536, INT32_MAX, INT32_MIN};
    for (uint64_t times = 1 + random_below(3); times > 0 && !bytes.empty(); times--) {
        const size_t size = bytes.size(), at = random_below(random_below(2) ? std::min<size_t>(size, 16) : size);
        const size_t part = std::min<size_t>(size - at, 1 + random_below(300));
        const int32_t number = (int32_t)extremes[random_below(12)];
        switch (random_below(7)) {
            case 0: bytes[at] ^= (char)(1 << random_below(8)); break;
            case 1: bytes[at] = (char)random_below(256); break;
            case 2: memcpy(&bytes[at], &number, std::min<size_t>(4, size - at)); break;
            case 3: memcpy(&bytes[at / 2 * 2], &number, std::min<size_t>(2, size - at / 2 * 2)); break;
            case 4: bytes.resize(at); break;
            case 5: bytes.erase(at, part); break;
            default: bytes.insert(at, bytes.substr(at, part)); break;
        }
    }
    return bytes;
}

static void tokenizers() {
    start_test("a tokenizer whose tokens split into pairs in millions of ways encodes as its merges say");
    std::string bytes = header_of(20240328, 2, 0, 0);
    int vocab = 256;
    for (int id = 0; id < 256; id++) bytes += {(char)1, (char)id};
    auto add = [&](const std::string& token) { bytes += (char)token.size() + token, vocab++; };
    for (int length = 2; length <= 180; length++) add(std::string(length, 'a'));
    // The letter b at each position among letters a: all splits are into two tokens.
    for (int length = 2; length <= 180; length++)
        for (int place = 0; place < length; place++)
            add(std::string(place, 'a') + "b" + std::string(length - 1 - place, 'a'));
    add("<|endoftext|>");
    ((Header*)bytes.data())->value[2] = vocab, ((Header*)bytes.data())->value[3] = vocab - 1;
    write_whole(dir("pairs.bin"), bytes);
    EXPECT(outcome([] {
               Tokenizer tok;
               tokenizer_load(tok, dir("pairs.bin"));
               std::vector<int> ids;
               encode(tok, std::string(100, 'a') + "b" + std::string(79, 'a') + "c" + std::string(63, 'a'), ids);
               std::string back;
               for (int id : ids) back += decode(tok, id);
               if (back.size() != 244 || tok.pair_slots.size() < 1 << 21) _exit(7);
           }) == 0);
    start_test("of tokens with the same bytes the first is used");
    write_whole(dir("same.bin"), tokenizer_of(65536, 250, 1));
    EXPECT(outcome([] {
               Tokenizer tok;
               tokenizer_load(tok, dir("same.bin"));
               std::vector<int> ids;
               encode(tok, "aa", ids);
               for (int id = 256; ids.size() == 1 && id < ids[0]; id++)
                   if (decode(tok, id) == "aa") _exit(7);
           }) == 0);
    start_test("damaged tokenizer files are loaded or refused");
    const std::string good = tokenizer_of(300, 5, 3);
    int taken = 0, refusals = 0;
    for (int i = 0; i < DAMAGED_FILES; i++) {
        write_whole(dir("t.bin"), i ? damaged(good) : good);
        const int status = outcome([i] {
            Tokenizer tok;
            tokenizer_load(tok, dir("t.bin"), i % 2 == 0);
            std::vector<int> ids;
            if (i % 2 == 0) encode(tok, "abcabcabc <|endoftext|>", ids);
            for (int id : ids) decode(tok, id);
        });
        if (!EXPECT(status >= 0)) break;
        (status ? refusals : taken)++;
    }
    EXPECT(taken > DAMAGED_FILES / 14 && refusals > DAMAGED_FILES / 14);
}

static void hellaswag_files() {
    start_test("damaged HellaSwag files are loaded or refused");
    write_hellaswag(dir("h.bin"));
    const std::string good = read_whole(dir("h.bin"));
    int taken = 0, refusals = 0;
    for (int i = 0; i < DAMAGED_FILES; i++) {
        write_whole(dir("h.bin"), i ? damaged(good) : good);
        const int status = outcome([] {
            for (const HellaSwagExample& e : hellaswag_load(dir("h.bin"), 256))
                for (const auto& completion : e.completions)
                    if (e.label > 3 || e.context.empty() || completion.empty()) _exit(7);
        });
        if (!EXPECT(status >= 0)) break;
        (status ? refusals : taken)++;
    }
    EXPECT(taken > DAMAGED_FILES / 14 && refusals > DAMAGED_FILES / 14);
}

static void token_files(const TokenLayout& layout) {
    start_test(format("damaged token files of %d bytes a token are read or refused", layout.token_bytes));
    std::string good = header_of(layout.magic, layout.version, 500, 0);
    for (int i = 0; i < 500; i++) good += (char)random_below(256) + std::string(layout.token_bytes - 1, '\0');
    int taken = 0, refusals = 0;
    for (int i = 0; i < DAMAGED_FILES; i++) {
        write_whole(dir("tokens.bin"), i ? damaged(good) : good);
        const int status = outcome([] {
            DataLoader loader;
            dataloader_open(loader, "-i", dir("tokens.bin"), 16, 256, 42, true);
            int x[16], y[16];
            for (int64_t w = 0; w < 2 * loader.total_windows; w++) {
                load_window(loader, w, x, y);
                for (int t = 0; t < 16; t++)
                    if (x[t] > 255 || y[t] > 255 || (t && x[t] != y[t - 1])) _exit(7);
            }
        });
        if (!EXPECT(status >= 0)) break;
        (status ? refusals : taken)++;
    }
    EXPECT(taken > DAMAGED_FILES / 14 && refusals > DAMAGED_FILES / 14);
}

static void wide_tokens() {
    start_test("shards of 32 bits have the tokens that were written, and stand beside those of 16");
    std::vector<uint32_t> wide(33);
    std::vector<uint16_t> narrow(33);
    for (size_t i = 0; i < wide.size(); i++) wide[i] = (uint32_t)(i * 4001 + 70000), narrow[i] = (uint16_t)(i * 1999);
    write_tokens(dir("tokens_1.bin"), wide.data(), (int64_t)wide.size());
    write_tokens(dir("tokens_2.bin"), narrow.data(), (int64_t)narrow.size());
    DataLoader loader;
    dataloader_open(loader, "-i", dir("tokens_?.bin"), 16, 200000, 42, false);
    int x[16], y[16];
    for (int64_t w = 0; w < 4; w++) {
        load_window(loader, w, x, y);
        for (int64_t t = 0; t < 16; t++) {
            const int64_t at = w % 2 * 16 + t;
            EXPECT(x[t] == (w < 2 ? (int)wide[at] : narrow[at]) &&
                   y[t] == (w < 2 ? (int)wide[at + 1] : narrow[at + 1]));
        }
    }
    start_test("tokens that no int holds, or that are not in the vocabulary, are refused");
    for (uint32_t token : {200000u, 1u << 31, UINT32_MAX}) {
        wide[16] = token;
        write_tokens(dir("tokens_1.bin"), wide.data(), (int64_t)wide.size());
        DataLoader damaged;
        dataloader_open(damaged, "-i", dir("tokens_1.bin"), 16, 200000, 42, false);
        EXPECT(contains(try_load_window(damaged, 0, x, y), format("token %d at offset 16", (int64_t)token).c_str()));
    }
    for (const char* name : {"tokens_1.bin", "tokens_2.bin"}) unlink(dir(name).c_str());
}

// A file with this content to which terabytes are added that take no room on the disk.
static void write_sparse(const std::string& path, const std::string& content) {
    write_whole(path, content);
    if (truncate(path.c_str(), (off_t)8 << 40) != 0) EXPECT(truncate(path.c_str(), (off_t)1 << 40) == 0);
}

static void sparse_files() {
    start_test("files of terabytes are refused at once, by what their headers justify");
    write_sparse(dir("t.bin"), tokenizer_of(300, 5, 3));
    EXPECT(outcome([] {
               Tokenizer tok;
               tokenizer_load(tok, dir("t.bin"));
           }) == 1);
    write_sparse(dir("t.bin"), header_of(20240328, 2, 65536, 0));
    EXPECT(outcome([] {
               Tokenizer tok;
               tokenizer_load(tok, dir("t.bin"), false);
           }) == 1);
    write_hellaswag(dir("h.bin"));
    write_sparse(dir("h.bin"), read_whole(dir("h.bin")));
    EXPECT(outcome([] { hellaswag_load(dir("h.bin"), 256); }) == 1);
    write_sparse(dir("h.bin"), header_of(20240522, 1, INT32_MAX, INT32_MAX));
    EXPECT(outcome([] { hellaswag_load(dir("h.bin"), 256); }) == 1);
    write_sparse(dir("tokens.bin"), header_of(TOKENS_32.magic, TOKENS_32.version, INT32_MAX, 0));
    EXPECT(outcome([] {
               DataLoader loader;
               dataloader_open(loader, "-i", dir("tokens.bin"), 16, 256, 42, true);
           }) == 1);
    for (const char* name : {"t.bin", "h.bin", "tokens.bin"}) unlink(dir(name).c_str());
}

static void default_files() {
    char* here = getcwd(nullptr, 0);
    auto elsewhere = [&](const std::string& flags) {
        return run("sh -c 'cd " + folder + " && " + here +
                   "/train_gpt2_cpu -e L1C16H1T16 -b 1 -t 16 -x 1 -m 1 -s 0 --threads 1 " + flags + "'");
    };
    start_test("a trainer started elsewhere finds the data and the tokenizer beside itself");
    Outcome r = elsewhere("-v 1 -s 1 -g 2 --prompt Hello");
    EXPECT(r.status == 0 && r.err.empty() && contains(r.out, "val loss") && contains(r.out, "Hello"));
    start_test("paths that the user gave are looked for where they say; the message names the flag");
    EXPECT(refused(elsewhere("-v 0 -i dev/data/shakespeare_train.bin"), 1, "-i "));
    EXPECT(refused(elsewhere("-v 1 -j dev/data/shakespeare_val.bin"), 1, "-j "));
    EXPECT(refused(elsewhere("-v 0 -s 1 --prompt Hello --tokenizer dev/data/gpt2_tokenizer.bin"), 1, "--tokenizer "));
    free(here);
}

// A shard of 20,000 tokens, of which one in the middle may be another.
static void write_shard(const std::string& path, uint16_t middle) {
    std::vector<uint16_t> tokens(20000);
    for (size_t i = 0; i < tokens.size(); i++) tokens[i] = (uint16_t)(i * i % 251);
    tokens[10000] = middle;
    write_tokens(path, tokens.data(), tokens.size());
}
// The time of the last change that `from` has.
static void set_times(const std::string& path, const struct stat& from) {
#ifdef __APPLE__
    const struct timespec time = from.st_mtimespec;
#else
    const struct timespec time = from.st_mtim;
#endif
    const struct timespec both[2] = {time, time};
    EXPECT(utimensat(AT_FDCWD, path.c_str(), both, 0) == 0);
}

static void changed_shards() {
    const std::string shard = dir("shard.bin"), out = dir("kept");
    const std::string trains = "./train_gpt2_cpu -i " + shard + " -e L1C8H1V256T16 -b 1 -t 16 -v 0 -s 0 --threads 1 ";
    auto resumed = [&](int steps) { return run(trains + "-y 1 -o " + out + format(" -x %d", steps)); };
    write_shard(shard, 7);
    EXPECT(run(trains + "-x 2 -o " + out).status == 0);
    start_test("a token changed in the middle of a shard: -y 1 is refused");
    write_shard(shard, 8);
    EXPECT(refused(resumed(4), 2, "-i "));
    start_test("the same bytes at another time: -y 1 goes on");
    write_shard(shard, 7);
    EXPECT(resumed(4).status == 0);
    start_test("a checksum is remembered by size and time: what is as old and as long is not read again");
    struct stat before;
    EXPECT(stat(shard.c_str(), &before) == 0);
    write_shard(shard, 8);
    set_times(shard, before);
    EXPECT(resumed(6).status == 0);
    start_test("a damaged line of shards.txt is not believed: the shard is read");
    std::string remembered = read_whole(out + "/shards.txt");
    write_whole(out + "/shards.txt", remembered.insert(17, "9"));  // the size
    EXPECT(refused(resumed(8), 2, "-i "));
    start_test("a shard replaced while a run goes on ends it with one sentence; one only touched does not");
    write_shard(shard, 7);
    const pid_t running = start(trains + "-x 100000000 --overwrite 1 -o " + out);
    auto wait_for_step_after = [&](int64_t step) {
        for (int i = 0; i < 6000; i++, usleep(10000)) {
            const std::string log = read_whole(out + "/main.log");
            const size_t last = log.rfind("\ns:");
            if (last != log.npos && atoll(log.c_str() + last + 3) > step) return true;
        }
        return false;
    };
    EXPECT(wait_for_step_after(10));
    set_times(shard, before);
    EXPECT(wait_for_step_after(3000));  // 1,249 windows an epoch: the shard was opened again
    write_shard(shard, 8);
    EXPECT(refused(finish(running), 1, shard.c_str()));
    start_test("a run that is not kept goes on with a shard that was only touched");
    const pid_t touched = start(trains + "-x 6000");
    usleep(50000);
    set_times(shard, before);
    EXPECT(finish(touched).status == 0);
}

static void small_text_files() {
    start_test("lines of a small file: not a last one without an end; none of a file that is missing or too long");
    write_whole(dir("lines.txt"), "one\n\ntwo\ncut sho");
    EXPECT((read_lines(dir("lines.txt"), 100) == std::vector<std::string>{"one", "", "two"}));
    EXPECT(read_lines(dir("lines.txt"), 16).size() == 3 && read_lines(dir("lines.txt"), 15).empty());
    EXPECT(read_lines(dir("no lines.txt"), 100).empty() && read_lines(folder, 1 << 20).empty());
}

int main() {
    make_test_folder();
    small_text_files();
    changed_shards();
    default_files();
    tokenizers();
    hellaswag_files();
    token_files(TOKENS_16), token_files(TOKENS_32);
    wide_tokens();
    sparse_files();
    return report_and_clean();
}
