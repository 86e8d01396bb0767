// Runs with a loss mask: the loss is the mean over the tokens that count, in training and
// validation, for any split into micro-steps and processes, on CPUs and in the simulator; masks
// that are damaged, of another shard, missing or changed; masks that count nothing. Skipped
// updates, by a mask or as outliers, are as if their steps had not been.
#include <sys/stat.h>
#include <sstream>
#include "dev/test/masks.h"
#include "dev/test/several.h"
#include "llmc/checkpoint/checkpoint.h"

// Prompts and completions of changing lengths: windows count between none and all of their tokens.
static bool completion(int64_t i) { return i % 97 > 40 || i % 13 == 5; }
static bool prompt(int64_t i) { return !completion(i); }

static void write_masks(const std::function<bool(int64_t)>& counts) {
    for (const char* name : {"train_0.bin", "train_1.bin", "val.bin"}) write_mask(dir(name), counts);
}
static std::string masked() { return "--loss-mask '" + folder + "/train_*.mask' "; }

static double val_loss(const Outcome& r) {
    const size_t at = r.out.find("val loss ");
    return at == r.out.npos ? NAN : atof(r.out.c_str() + at + 9);
}
static double first_loss(const Outcome& r) {
    const Steps steps = steps_of(r);
    return steps.losses.empty() ? NAN : steps.losses[0];
}

static const char* TRAINING = "-x 12 -d 192 -l 3e-3 -c 0.1 --grad-clip 0.8 -f 0 ";

static void mean_over_counted() {
    start_test("a mask that counts every token changes no bit");
    write_masks([](int64_t) { return true; });
    const std::string evaluated = "-x 12 -v 3 -m -1 -d 192 -o ";
    EXPECT(run(tiny_run(CPU, evaluated + dir("plain"))).status == 0);
    EXPECT(run(tiny_run(CPU, evaluated + dir("ones ") + masked())).status == 0);
    EXPECT(same_files(model_path(dir("plain"), 12), model_path(dir("ones"), 12)));
    EXPECT(same_files(dir("plain/main.log"), dir("ones/main.log")));

    start_test("the losses of completions and of prompts, times their numbers, add up to the loss of all tokens");
    const std::string one_step = "-x 1 -v 1 -m -1 -d 192 -b 3 --shuffle 0 ";
    const Outcome whole = run(tiny_run(CPU, one_step));
    double step_sum = 0, val_sum = 0, step_tokens = 0, val_tokens = 0;
    for (const auto& counts : {completion, prompt}) {
        write_masks(counts);
        const Outcome r = run(tiny_run(CPU, one_step + masked()));
        double of_step = 0, of_val = 0;
        for (int64_t i = 1; i <= 192; i++) of_step += counts(i);
        for (int64_t i = 1; i <= 1488; i++) of_val += counts(i);  // the windows of 1500 tokens
        step_sum += of_step * first_loss(r), val_sum += of_val * val_loss(r);
        step_tokens += of_step, val_tokens += of_val;
    }
    EXPECT(step_tokens == 192 && std::fabs(step_sum / 192 - first_loss(whole)) < 2e-6);
    EXPECT(val_tokens == 1488 && std::fabs(val_sum / 1488 - val_loss(whole)) < 2e-6);
}

static void any_split() {
    write_masks(completion);
    const std::string training = TRAINING + masked();
    const Outcome base = run(tiny_run(CPU, training + "-b 12 -v 12 -m -1 "));
    start_test("12 micro-steps that count different numbers of tokens are one large one, to rounding");
    const Outcome micro = run(tiny_run(CPU, training + "-b 1 -v 12 -m -1 "));
    EXPECT(agree(micro, base, 12, 1e-5, 1e-5) && std::fabs(val_loss(micro) - val_loss(base)) < 1e-5);
    start_test("the comparison sees a mask");
    EXPECT(!(apart(steps_of(run(tiny_run(CPU, std::string(TRAINING) + "-b 12 "))).losses, steps_of(base).losses, 12) <
             1e-3));
    start_test("bf16, recomputation, several threads");
    EXPECT(agree(run(tiny_run(CPU, training + "-b 2 --precision bf16 -r 3")), base, 12, LOSS16, NORM16));
    start_test("resumed: the same bits");
    const std::string out = "-b 2 -n 5 -v 4 -m 3 -o ";
    EXPECT(run(tiny_run(CPU, training + out + dir("calm"))).status == 0);
    EXPECT(run(tiny_run(CPU, training + out + dir("parts"))).status == 0);
    remove_checkpoint(dir("parts"), 12), remove_checkpoint(dir("parts"), 10);
    const Outcome resumed = run(CPU + " -y 1 -o " + dir("parts"));
    EXPECT(resumed.status == 0 && contains(resumed.out, "resumed at step 5"));
    EXPECT(same_files(model_path(dir("calm"), 12), model_path(dir("parts"), 12)));
    EXPECT(same_files(dir("calm/main.log"), dir("parts/main.log")));
    start_test("several processes, stages 0 and 1: the numbers of one");
    if (run(std::string(MPIRUN) + "-np 2 true").status != 0)
        return skip_test("runs under mpirun (apt-get install libopenmpi-dev openmpi-bin, then make clean test)");
    for (const char* stage : {"0", "1"}) {
        const Outcome two = run(several(CPU, 2, training + "-v 12 -m -1 -z " + stage));
        EXPECT(agree(two, base, 12, 1e-4, 1e-4) && std::fabs(val_loss(two) - val_loss(base)) < 1e-4);
    }
}

static void simulated_gpus() {
    write_masks(completion);
    const std::string training = TRAINING + masked() + "-v 12 -m 2 ";
    const Outcome cpu = run(tiny_run(CPU, training));
    for (const std::string& program : {SIM32, SIM16}) {
        start_test(program + ": the numbers of the CPU trainer");
        const bool half = program == SIM16;
        const Outcome r = run(tiny_run(program, training));
        EXPECT(agree(r, cpu, 12, half ? LOSS16 : 1e-4, half ? NORM16 : 1e-4));
        EXPECT(std::fabs(val_loss(r) - val_loss(cpu)) < (half ? LOSS16 : 1e-4) * val_loss(cpu));
    }
}

static void nothing_counts(const std::string& program) {
    start_test(program + ": a step without tokens that count changes no weight, and training goes on");
    // Step 2 has tokens 193 to 384 as targets.
    write_masks([](int64_t i) { return i < 193 || i > 384; });
    const std::string flags = "-x 3 -d 192 -n 1 --shuffle 0 -c 0.1 -o " + dir("gap") + " --overwrite 1 ";
    const Outcome r = run(tiny_run(program, flags + masked()));
    const Steps steps = steps_of(r);
    EXPECT(r.status == 0 && contains(r.out, "step 2: update skipped, the loss mask counts none of its tokens"));
    EXPECT(steps.losses.size() == 3 && steps.losses[0] > 1 && steps.losses[2] > 1);
    EXPECT(steps.norms.size() == 3 && steps.norms[0] > 0 && steps.norms[2] > 0);
    EXPECT(same_files(model_path(dir("gap"), 1), model_path(dir("gap"), 2)));
    EXPECT(!same_files(model_path(dir("gap"), 2), model_path(dir("gap"), 3)));
    EXPECT(!contains(r.out, "nan"));
    start_test(program + ": a step without tokens that count has no loss and no norm");
    EXPECT(contains(r.out, "step    2/3 | loss - | norm - | lr 3.00e-04 | "));
    const std::string log = read_whole(dir("gap/main.log"));
    EXPECT(contains(log, "s:0 trl:") && !contains(log, "s:1 ") && contains(log, "s:2 trl:"));
    std::istringstream lines(read_whole(dir("gap/metrics.csv")));
    std::string line;
    std::getline(lines, line);  // the header
    for (int step = 0; step < 3; step++) {
        EXPECT((bool)std::getline(lines, line) && metric_of(line, METRIC_STEP) == step);
        for (Metric metric : {METRIC_LOSS, METRIC_NORM}) EXPECT(metric_of(line, metric).has_value() == (step != 1));
        EXPECT(metric_of(line, METRIC_RATE) > 0);
    }
}

// Writes the shards plain.bin, of so many steps, and gaps.bin, which has steps of other tokens
// before those with the numbers `gaps`; and gaps.mask, which counts none of these. A window has a
// token that the next one begins with: there a gap begins as the step behind it.
static void write_gaps(int64_t steps, int64_t step_tokens, const std::vector<int64_t>& gaps) {
    std::vector<uint16_t> plain, with;
    std::vector<bool> counts{true};
    for (int64_t step = 0; step < steps; step++) {
        std::vector<uint16_t> tokens;
        for (int64_t i = 0; i < step_tokens; i++) tokens.push_back((uint16_t)((3 * i + i / 7) % 40));
        for (int64_t gap : gaps) {
            if (gap != step) continue;
            with.push_back(tokens[0]);
            for (int64_t i = 1; i < step_tokens; i++) with.push_back((uint16_t)(50 + i * i * 13 % 200));
            counts.insert(counts.end(), step_tokens, false);
        }
        plain.insert(plain.end(), tokens.begin(), tokens.end()), with.insert(with.end(), tokens.begin(), tokens.end());
        counts.insert(counts.end(), step_tokens, true);
    }
    plain.push_back(7), with.push_back(7);
    mkdir(dir("gap_data").c_str(), 0700);
    write_tokens(dir("gap_data/plain.bin"), plain.data(), (int64_t)plain.size());
    write_tokens(dir("gap_data/gaps.bin"), with.data(), (int64_t)with.size());
    write_mask(dir("gap_data/gaps.bin"), [&](int64_t i) { return counts[i]; });
}
// The states in a state file, without header and checksum.
static std::string states_in(const std::string& name, int64_t step) {
    StateHeader header;
    FileReader file(state_path(dir(name), step, 0));
    EXPECT(try_read_header(file, header));
    const std::string bytes = read_whole(file.path);
    return bytes.substr(header.bytes(), bytes.size() - header.bytes() - 8);
}
// Whether a run has ended with the weights and the optimizer's state of another, after other
// numbers of steps.
static bool same_training(const std::string& a, int64_t a_steps, const std::string& b, int64_t b_steps) {
    const bool same_weights = same_files(model_path(dir(a), a_steps), model_path(dir(b), b_steps));
    return same_weights && states_in(a, a_steps) == states_in(b, b_steps);
}
static std::string on_gaps(const std::string& program, const std::string& name, const std::string& more) {
    const std::string begins = contains(more, "-y 1") ? "" : " --overwrite 1";
    return tiny_run(program, more + " --shuffle 0 -k constant -i " + dir("gap_data/") + name + ".bin -o " + dir(name)) +
           begins;
}

static void skipped_updates(const std::string& program, const char* optimizer) {
    write_gaps(4, 64, {1, 2, 2});
    const std::string flags = format("-d 64 -l 1e-3 -c 0.1 --optimizer %s ", optimizer);
    const std::string with_mask = flags + "--loss-mask " + dir("gap_data/gaps.mask ");
    start_test(format("%s, %s: updates that a mask skips do not count", program, optimizer));
    EXPECT(passed(run(on_gaps(program, "plain", flags + "-x 4"))));
    const Outcome whole = run(on_gaps(program, "gaps", with_mask + "-x 7"));
    for (int step : {2, 4, 5}) EXPECT(contains(whole.out, format("step %d: update skipped", step)));
    EXPECT(passed(whole) && same_training("gaps", 7, "plain", 4));
    start_test(format("%s, %s: they do not count after the run is resumed, in between and behind", program, optimizer));
    const std::string state = read_whole(state_path(dir("gaps"), 7, 0));
    EXPECT(passed(run(on_gaps(program, "gaps", with_mask + "-x 2"))));
    for (const char* more : {"-y 1 -x 4", "-y 1 -x 6", "-y 1 -x 7"})
        EXPECT(passed(run(on_gaps(program, "gaps", with_mask + more))));
    EXPECT(same_training("gaps", 7, "plain", 4) && read_whole(state_path(dir("gaps"), 7, 0)) == state);
    StateHeader header;
    EXPECT(newest_checkpoint(dir("gaps"), header) == 7 && header.version == STATE_VERSION_SKIPPED);
    EXPECT(newest_checkpoint(dir("plain"), header) == 4 && header.version < STATE_VERSION_FP16);
}

static void skipped_outliers(const std::string& program) {
    write_gaps(140, 16, {132});
    const std::string flags = "-b 1 -d 16 -l 3e-3 -c 0.1 ";
    EXPECT(passed(run(on_gaps(program, "plain", flags + "-x 140"))));
    for (const char* limit : {"-sl 2.5", "-sg 6"}) {
        start_test(format("%s: updates that %s skips do not count", program, limit));
        const Outcome whole = run(on_gaps(program, "gaps", flags + limit + " -x 141"));
        const size_t first = whole.out.find("update skipped");
        EXPECT(contains(whole.out, "step 133: update skipped, its "));
        EXPECT(first < whole.out.size() && whole.out.find("update skipped", first + 1) == whole.out.npos);
        EXPECT(passed(whole) && same_training("gaps", 141, "plain", 140));
    }
}

static void bad_masks() {
    write_masks(completion);
    const std::string one = "-x 1 ", mask = dir("train_1.mask"), good = read_whole(mask);
    auto damaged = [&](const std::string& bytes, int status, const std::string& expected) {
        write_whole(mask, bytes);
        const bool is_refused = refused(run(tiny_run(CPU, one + masked())), status, expected);
        write_whole(mask, good);
        return is_refused;
    };
    auto changed = [&](size_t at, int by) {
        std::string bytes = good;
        bytes[at] = (char)(bytes[at] ^ by);
        return bytes;
    };
    start_test("a mask that is damaged is refused with one sentence, exit 1");
    EXPECT(run(tiny_run(CPU, one + masked())).status == 0);
    EXPECT(damaged(good.substr(0, good.size() - 1), 1, "train_1.mask is cut short"));
    EXPECT(damaged(good + "x", 1, "train_1.mask is too long"));
    EXPECT(damaged(good.substr(0, 100), 1, "train_1.mask is no loss mask"));
    EXPECT(damaged(changed(0, 1), 1, "train_1.mask is no loss mask"));
    EXPECT(damaged(changed(4, 2), 1, "version 3"));
    EXPECT(damaged(changed(11, 0x80), 1, "damaged"));
    EXPECT(damaged(changed(12, 1), 1, "damaged"));
    EXPECT(damaged(changed(24, 1), 1, "damaged"));
    EXPECT(damaged(changed(1100, 4), 1, "damaged"));
    start_test("a mask of another shard is refused, of the same length too");
    EXPECT(damaged(read_whole(dir("train_0.mask")), 1, "train_1.mask is not the loss mask of"));
    EXPECT(damaged(changed(16, 1), 1, "train_1.mask is not the loss mask of"));
    const std::vector<uint16_t> few(700, 3);
    write_tokens(dir("few.bin"), few.data(), few.size());
    EXPECT(damaged(mask_of(dir("few.bin"), completion), 1, "of 700 tokens"));
    start_test("masks that are not there: none for -i, too few, too many, some of -j");
    EXPECT(refused(run(tiny_run(CPU, one + "--loss-mask " + dir("no*.mask"))), 1, "matches no file"));
    EXPECT(refused(run(tiny_run(CPU, one + "--loss-mask " + mask)), 2, "matches 1 file"));
    EXPECT(refused(run(tiny_run(CPU, one + "--loss-mask '" + folder + "/*.mask'")), 2, "matches 3 files"));
    unlink(dir("train_0.mask").c_str());
    const std::string both = tiny_run(CPU, "-x 0 -v 1 -m 1 --loss-mask x -j '" + folder + "/train_*.bin'");
    EXPECT(refused(run(both), 1, "train_0.mask is not there, but"));
    unlink(mask.c_str());
    const Outcome plain = run(both);
    EXPECT(plain.status == 0 && one_line(plain.err) && contains(plain.err, "the mean over all tokens of -j"));
    start_test("a mask beside -i that is not used: a warning names it and the flag");
    write_masks(completion);
    const Outcome unused = run(tiny_run(CPU, one));
    EXPECT(unused.status == 0 && one_line(unused.err) && contains(unused.err, "train_0.mask is there") &&
           contains(unused.err, "--loss-mask '" + folder + "/train_*.mask'"));
    EXPECT(run(tiny_run(CPU, one + masked())).err.empty());
    start_test("a mask that counts no token is refused");
    write_masks([](int64_t) { return false; });
    EXPECT(refused(run(tiny_run(CPU, one + masked())), 1, "counts no token"));
}

static void changed_masks() {
    start_test("a run is not resumed with another mask, or without its mask");
    write_masks(completion);
    const std::string flags = "-x 2 -o " + dir("kept") + " ", more = "-x 3 -y 1 -o " + dir("kept") + " ";
    EXPECT(run(tiny_run(CPU, flags + masked())).status == 0);
    EXPECT(refused(run(tiny_run(CPU, more + "--loss-mask=")), 2, "-i"));
    write_mask(dir("train_1.bin"), [](int64_t i) { return completion(i) || i == 700; });
    EXPECT(refused(run(tiny_run(CPU, more + masked())), 2, "--loss-mask"));
    write_mask(dir("train_1.bin"), completion);
    EXPECT(run(tiny_run(CPU, more + masked())).status == 0);

    start_test("-e RUN -x 0 validates on the tokens that count in the run's own data");
    const std::string evaluate = "-x 0 -v 1 -m -1 -e " + dir("kept ");
    const double own = val_loss(run(std::string(CPU) + " -s 0 -t 16 " + evaluate));
    EXPECT(own == val_loss(run(tiny_run(CPU, evaluate + masked()))) && own > 0);
    EXPECT(std::fabs(own - val_loss(run(tiny_run(CPU, evaluate)))) > 1e-6);

    start_test("a mask that changes while a run trains is noticed");
    DataLoader loader;
    int x[16], y[16];
    int64_t counted = 0;
    dataloader_open(loader, "-i", dir("train_1.bin"), 16, 256, 42, true);
    dataloader_open_masks(loader, {dir("train_1.mask")});
    EXPECT(try_load_window(loader, 0, x, y).empty() && try_count_targets(loader, 0, counted).empty());
    write_mask(dir("train_1.bin"), prompt);
    start_epoch(loader, loader.sources[0], 0);  // opens the files again
    EXPECT(contains(try_load_window(loader, 0, x, y), "train_1.mask has changed"));
    EXPECT(contains(try_count_targets(loader, 0, counted), "train_1.mask has changed"));
}

static void windows() {
    start_test("each target has the bit of its own token, wherever the window begins");
    for (const int T : {1, 7, 16, 100}) {
        DataLoader loader;
        write_mask(dir("val.bin"), completion);
        dataloader_open(loader, "-j", dir("val.bin"), T, 256, 42, false);
        dataloader_open_masks(loader, {dir("val.mask")});
        const std::string shard = read_whole(dir("val.bin"));
        std::vector<int> x(T), y(T);
        bool right = true;
        for (int64_t w = 0; w < loader.total_windows; w++) {
            int64_t counted = 0, expected = 0;
            load_window(loader, w, x.data(), y.data());
            EXPECT(try_count_targets(loader, w, counted).empty());
            for (int64_t t = 0, i = w * T + 1; t < T; t++, i++) {
                right = right && y[t] == (completion(i) ? (unsigned char)shard[1024 + 2 * i] : -1);
                right = right && x[t] == (unsigned char)shard[1024 + 2 * (i - 1)];
                expected += completion(i);
            }
            right = right && counted == expected;
        }
        EXPECT(right);
    }
}

static void masks() {
    windows();
    mean_over_counted();
    any_split();
    simulated_gpus();
    for (const std::string& program : {CPU, SIM32, SIM16}) nothing_counts(program);
    bad_masks();
    changed_masks();
}
static void skips() {
    for (const OptimizerInfo& optimizer : OPTIMIZERS) skipped_updates(CPU, optimizer.name);
    for (const char* name : {"adamw", "lamb", "muon", "adafactor", "adamw8bit"}) skipped_updates(SIM16, name);
    skipped_updates(SIM32, "adam");
    for (const std::string& program : {CPU, SIM16}) skipped_outliers(program);
}

// test_loss_mask [masks] [skips]: the loss under masks; updates that are skipped, by every
// optimizer. Both if none is named.
int main(int argc, char** argv) {
    make_test_folder();
    if (wants_group(argc, argv, "masks")) masks();
    if (wants_group(argc, argv, "skips")) skips();
    return report_and_clean();
}
