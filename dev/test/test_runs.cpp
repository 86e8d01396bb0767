// The trainer as a user runs it: flags, files, what it prints and logs, HellaSwag, bf16.
#include <regex>
#include "dev/test/end_of_text.h"
#include "dev/test/run_program.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/data/tokenizer.h"

static std::string tiny(const std::string& more) { return tiny_run("./train_gpt2_cpu", more); }
static void flags() {
    struct Case {
        const char *flags, *name;
    };
    for (const Case& c : {Case{"--nonsense 1", "--nonsense"},
                          {"-b", "-b"},
                          {"-b x", "-b"},
                          {"-b 0", "-b"},
                          {"-b 4x", "-b"},
                          {"-b 1e2", "-b"},
                          {"-b 99999999999999999999", "-b"},
                          {"-b ''", "-b"},
                          {"-b ' 4'", "-b"},
                          {"-l nan", "-l"},
                          {"-l inf", "-l"},
                          {"-l -1", "-l"},
                          {"-l 0x1p3", "-l"},
                          {"-q 1.5", "-q"},
                          {"--beta1 1", "--beta1"},
                          {"--eps 0", "--eps"},
                          {"--top-p 0", "--top-p"},
                          {"--temperature -1", "--temperature"},
                          {"-x -2", "-x"},
                          {"-m 0", "-m"},
                          {"-r 5", "-r"},
                          {"-z 4", "-z"},
                          {"-y 2", "-y"},
                          {"-lg 0", "-lg"},
                          {"-t 17", "-t"},
                          {"-d 33", "-d"},
                          {"-d 0", "-d"},
                          {"-e d13", "-e"},
                          {"-e L2C33H2", "-e"},
                          {"-e L2C32", "-e"},
                          {"-e ''", "-e"},
                          {"-e L0C32H2", "-e"},
                          {"-e L2C32H2X3", "-e"},
                          {"-e L2L2C32H2", "-e"},
                          {"-pn 2", "--num-processes"},
                          {"-pr 1", "--process-rank"},
                          {"-pi carrier", "-pi"},
                          {"--precision fp8", "--precision"},
                          {"-y 1", "-y"},
                          {"--plan=1", "--plan"},
                          {"-ge 3", "-ge"},
                          {"-r 4 --recompute-every 3", "--recompute-every 3"},
                          {"-r 3 --recompute-every 1", "--recompute-every 1"},
                          {"--shuffle 2", "--shuffle"},
                          {"-k polynomial", "inverse-sqrt, exponential, step"},
                          {"-k step -q 0", "-q 0 with -k step"},
                          {"-k exponential -q 0", "-q 0 with -k exponential"},
                          {"stray", "stray"}}) {
        start_test(std::string("refused with exit 2: ") + c.flags);
        EXPECT(refused(run(tiny(c.flags)), 2, c.name));
    }
    start_test("flags: =, last wins, values that begin with -, help, version");
    EXPECT(run(tiny("--max-steps=1 -b 1 -b 2 --prompt=-x")).status == 0);
    EXPECT(run(tiny("-x 1 -e L1C32H2T16 --prompt -dash -s 0 -g 2")).status == 0);
    Outcome help = run("./train_gpt2_cpu --help");
    EXPECT(help.status == 0 && contains(help.out, "--final-lr-frac") && help.err.empty());
    const Outcome all = run("./train_gpt2_cpu --help all"), both = run("./train_gpt2_cpu --help=all -x 1");
    EXPECT(all.status == 0 && contains(all.out, "--top-k") && !contains(help.out, "--top-k") && all.out == both.out);
    for (const char* other : {"--help most", "--help ''", "--help=", "--help=all,", "--help all all"})
        EXPECT(refused(run(format("./train_gpt2_cpu %s", other)), 2, "--help all"));
    for (const char* precision : {"fp32", "bf16"})
        EXPECT(contains(run(format("./train_gpt2_cpu --version --precision %s", precision)).out,
                        format("%s, %s, ", TRAINER_VERSION, precision)));
    start_test("what scripts may ask for: a warmup longer than the run, -n without -o (one line says so)");
    const Outcome u = run(tiny("-x 2 -u 700"));
    EXPECT(u.status == 0 && one_line(u.err) && contains(u.err, "-u 700 is longer than the run, 2 steps"));
    Outcome n = run(tiny("-x 1 -n 5"));
    EXPECT(n.status == 0 && one_line(n.err) && contains(n.err, "-n 5"));
    start_test("--plan prints and writes nothing, for a model far larger than memory too");
    Outcome plan = run("./train_gpt2_cpu -e gpt3:c12288 -o " + dir("never") + " --plan");
    EXPECT(plan.status == 0 && contains(plan.out, "total") && !folder_exists(dir("never")));
}

static void files() {
    start_test("files that are not what they should be: exit 1, one sentence");
    const std::string good = read_whole(dir("val.bin"));
    auto shard = [&](const char* what, const std::string& bytes) {
        write_whole(dir("bad.bin"), bytes);
        if (!EXPECT(refused(run(tiny("-x 1 -i " + dir("bad.bin"))), 1, "bad.bin"))) printf("    %s\n", what);
    };
    auto patched = [&](std::string bytes, int at, int32_t value) { return memcpy(&bytes[at * 4], &value, 4), bytes; };
    shard("empty", "");
    shard("short header", good.substr(0, 500));
    shard("wrong magic", patched(good, 0, 7));
    shard("wrong version", patched(good, 1, 9));
    shard("truncated", good.substr(0, good.size() - 3));
    shard("too long", good + "x");
    shard("negative count", patched(good, 2, -5));
    shard("too few tokens", patched(good.substr(0, 1024 + 20), 2, 10));
    EXPECT(refused(run(tiny("-x 1 -i '" + dir("none_*.bin") + "'")), 1, "none_"));
    EXPECT(refused(run(tiny("-x 1 -d 64000")), 1, "too short for one step"));
    EXPECT(refused(run(tiny("-x 1 -e " + dir("missing.bin"))), 1, "missing.bin"));
    start_test("a damaged model file: exit 1, one sentence");
    EXPECT(run(tiny("-x 1 -o " + dir("m"))).status == 0);
    const std::string model = read_whole(dir("m/model_00000001.bin"));
    for (const std::string& bytes :
         {std::string(), model.substr(0, 1000), model.substr(0, model.size() - 1), model + "x", patched(model, 0, 1),
          patched(model, 1, 4), patched(model, 4, -1), patched(model, 4, 2000000000), patched(model, 5, 5),
          patched(model, 7, 257), patched(model, 3, 1 << 30)}) {
        write_whole(dir("bad_model.bin"), bytes);
        EXPECT(refused(run(tiny("-x 1 -e " + dir("bad_model.bin"))), 1, "bad_model.bin"));
    }
    EXPECT(run(tiny("-x 1 -e " + dir("m/model_00000001.bin"))).status == 0);
    start_test("a bf16 model file loads");
    std::string half = patched(model.substr(0, 1024), 1, 5);
    for (size_t at = 1024; at < model.size(); at += 4) half += model.substr(at + 2, 2);
    write_whole(dir("half.bin"), half);
    EXPECT(run(tiny("-x 1 -e " + dir("half.bin"))).status == 0);
    start_test("a damaged tokenizer file: exit 1, one sentence");
    const std::string tokenizer = read_whole("dev/data/gpt2_tokenizer.bin");
    for (const std::string& bytes : {tokenizer.substr(0, 2000), tokenizer + "x", patched(tokenizer, 0, 3),
                                     patched(tokenizer, 2, 1 << 30), patched(tokenizer, 3, 60000)}) {
        write_whole(dir("bad_tokenizer.bin"), bytes);
        EXPECT(refused(run(tiny("-x 0 --prompt hi --tokenizer " + dir("bad_tokenizer.bin"))), 1, "bad_tokenizer.bin"));
        EXPECT(refused(run("./tokenize --ids --tokenizer " + dir("bad_tokenizer.bin")), 1, "bad_tokenizer.bin"));
    }
    start_test("a token beyond the vocabulary stops the run with shard and offset; the last checkpoint is whole");
    std::string beyond = read_whole(dir("train_0.bin"));
    beyond[1024 + 2 * 1000 + 1] = 1;  // token 1000 becomes 256 or more
    write_whole(dir("beyond.bin"), beyond);
    Outcome r = run(tiny("--shuffle 0 -n 1 -o " + dir("beyond") + " -i " + dir("beyond.bin")));
    EXPECT(refused(r, 1, "beyond.bin") && contains(r.err, "offset 1000"));
    StateHeader header;
    EXPECT(newest_checkpoint(dir("beyond"), header) == 31);  // windows 0..61 are good, two a step
}

static void lines_and_logs() {
    start_test("step lines, validation lines and main.log have the promised form");
    Outcome r = run(tiny("-x 4 -v 2 -m 3 -s 4 -g 3 -o " + dir("log")));
    EXPECT(r.status == 0);
    const std::regex step(
        "step +[0-9]+/4 \\| loss [0-9.]+ \\| norm [0-9.]+ \\| lr [0-9.]+e-[0-9]+ \\| [0-9.]+ ms \\| "
        "([0-9.]+% fp32|n/a) MFU \\| [0-9]+ tok/s\n");
    EXPECT(std::distance(std::sregex_iterator(r.out.begin(), r.out.end(), step), std::sregex_iterator()) == 4);
    EXPECT(contains(r.out, "step    1/4 | loss ") && contains(r.out, "\nval loss "));
    const std::regex log(
        "s:0 tel:[0-9.]+\ns:0 trl:[0-9.]+ lr:0.000300 norm:[0-9.]+\ns:1 trl:.*\ns:2 tel:.*\ns:2 trl:.*\ns:3 "
        "trl:.*\ns:4 tel:[0-9.]+\n");
    EXPECT(std::regex_match(read_whole(dir("log/main.log")), log));
    start_test("validation: the same loss for any B, a partial last batch included");
    auto val = [&](const std::string& flags) {
        std::string out = run(tiny("-x 0 -v 1 -m -1 " + flags)).out;
        return out.substr(out.find("val loss") < out.size() ? out.find("val loss") : 0);
    };
    const std::string one = val("-b 1");
    EXPECT(contains(one, "val loss") && std::fabs(atof(one.c_str() + 9) - atof(val("-b 7").c_str() + 9)) < 2e-6);
    start_test("-x 0 needs no training data and writes nothing; with a prompt it only generates");
    r = run(tiny("-x 0 -v 1 -i /nowhere -o " + dir("nothing")));
    EXPECT(r.status == 0 && contains(r.out, "val loss") && !folder_exists(dir("nothing")));
    const std::string generate =
        "./train_gpt2_cpu -e L1C32H2T24 -x 0 -s 1 -g 40 -i /nowhere -j /nowhere --prompt 'To be, or not' --top-k 20 ";
    r = run(generate);
    EXPECT(r.status == 0 && contains(r.out, "To be, or not") && !contains(r.out, "val loss"));
    EXPECT(run(generate).out == r.out);
    const std::string quiet = generate + "--quiet 1 ", text = run(quiet).out;
    EXPECT(run(quiet + "--threads 1").out == text && run(quiet + "--seed 7").out != text);
    start_test("-s 0 never samples, even with a prompt");
    EXPECT(!contains(run("./train_gpt2_cpu -e L1C32H2T24 -t 16 -b 1 -x 1 -v 0 -s 0 --prompt hello").out, "generating"));
    start_test("-a 1 learns its one batch by heart");
    r = run(tiny("-x 60 -a 1 -l 1e-2 -k constant"));
    EXPECT(atof(r.out.c_str() + r.out.rfind("loss") + 5) < 1.0);
    start_test("-sl skips an outlier and goes on");
    r = run(tiny("-x 200 -l 0 -sl 0.5"));
    EXPECT(r.status == 0 && contains(r.out, "update skipped, its loss") && contains(r.out, "step  200/200"));
}

static void hellaswag() {
    start_test("HellaSwag: the same answers for any B; a missing file is one line; damage is named");
    write_hellaswag(dir("hella.bin"));
    const std::string bytes = read_whole(dir("hella.bin"));
    auto result = [&](const char* b) {
        std::string out =
            run(tiny(std::string("-x 0 -v 1 -h 1 --hellaswag-data ") + dir("hella.bin") + " -b " + b)).out;
        return out.substr(out.find("HellaSwag:") < out.size() ? out.find("HellaSwag:") : 0);
    };
    const std::string three = result("3");
    EXPECT(std::regex_match(three, std::regex("HellaSwag: [0-9]+/10 = 0\\.[0-9]{6}\n")) && three == result("1") &&
           three == result("16"));
    Outcome missing = run(tiny("-x 1 -v 1 -h 1 --hellaswag-data " + dir("missing.bin")));
    EXPECT(missing.status == 0 && one_line(missing.err) && contains(missing.out, "step    1/1"));
    write_whole(dir("bad_hella.bin"), bytes.substr(0, bytes.size() - 6));
    EXPECT(refused(run(tiny("-x 1 -v 1 -h 1 --hellaswag-data " + dir("bad_hella.bin"))), 1, "bad_hella.bin"));
}

static std::string weights(const std::string& name, int step) { return model_path(dir(name), step); }

// How many gains of the last layer norm are not 1, in a bf16 model file of C channels.
static int changed_gains(const std::string& path, int64_t C) {
    const std::string bytes = read_whole(path);
    int changed = 0;
    for (int64_t i = 0; i < C && bytes.size() > 4096; i++)
        changed += bytes.compare(bytes.size() - 4 * C + 2 * i, 2, "\x80\x3F") != 0;
    return bytes.empty() ? -1 : changed;
}
static void rounded_weights() {
    start_test("bf16 weights rounded to nearest: gains of 1 stay, where stochastic rounding moves some");
    const std::string flags = "-x 10 -l 5e-4 -k constant -d 64 --precision bf16 -w 0 ";
    EXPECT(run(tiny(flags + "-o " + dir("random"))).status == 0 && changed_gains(weights("random", 10), 32) > 8);
    EXPECT(run(tiny(flags + "--rounding nearest -o " + dir("nearest"))).status == 0);
    EXPECT(changed_gains(weights("nearest", 10), 32) == 0);
    EXPECT(run(tiny(flags + "-x 5 --rounding nearest -o " + dir("halfway"))).status == 0 &&
           run(tiny("-y 1 -x 10 -k constant -o " + dir("halfway"))).status == 0);
    EXPECT(same_files(weights("nearest", 10), weights("halfway", 10)));
    start_test("--rounding where nothing is rounded gets one sentence");
    for (const char* more : {"--precision bf16", "", "-w 0", "--precision fp32 -w 0"})
        EXPECT(refused(run(tiny(std::string("-x 1 --rounding nearest ") + more)), 2, "--rounding nearest"));
    EXPECT(refused(run(tiny(flags + "--rounding up")), 2, "stochastic, nearest"));
}

// bf16 on the CPU: 30 steps stay as close to fp32 as rounding allows, checkpoints of one precision
// are resumed in the other, and nothing depends on the number of threads.
static void bf16_runs() {
    const std::string flags = "-x 30 -l 2e-3 -k constant -c 0.1 -d 64 ", half = flags + "--precision bf16 ";
    const Outcome exact = run(tiny(flags)), master = run(tiny(half)), rounded = run(tiny(half + "-w 0"));
    start_test("bf16 with master weights: the losses and norms of fp32, to rounding");
    EXPECT(contains(master.out, "bf16 MFU") && contains(master.out, "bf16 on "));
    EXPECT(agree(master, exact, 30, LOSS16, NORM16));
    start_test("bf16 with stochastic rounding: the losses of fp32, to what 30 steps of it may add up to");
    EXPECT(agree(rounded, exact, 30, 4 * LOSS16, 4 * NORM16));
    start_test(
        "fp32x3: nearer to fp32 than bf16 is, by more than a hundred times; another number of threads, -r 3: the same");
    const std::string split = flags + "--precision fp32x3 ";
    const Outcome three = run(tiny(split));
    EXPECT(contains(three.out, ": fp32x3 on ") && agree(three, exact, 30, LOSS16 / 100, NORM16 / 100));
    EXPECT(steps_of(three).norms != steps_of(exact).norms);
    EXPECT(steps_of(run(tiny(split + "--threads 3 -r 3"))).norms == steps_of(three).norms);
    EXPECT(refused(run(tiny("-x 1 --precision fp16")), 2, "fp32, fp32x3 and bf16 are accepted"));
    start_test("bf16: the same numbers again, on another number of threads, with other recomputation");
    EXPECT(steps_of(run(tiny(half + "--threads 3 -r 3"))).losses == steps_of(master).losses &&
           steps_of(run(tiny(half + "-w 0 --threads 1 -r 0"))).norms == steps_of(rounded).norms);
    start_test("bf16: several micro-steps are one larger one, to rounding");
    EXPECT(agree(run(tiny(half + "-b 1")), exact, 30, LOSS16, NORM16));
    start_test("bf16 stopped and resumed ends with the weights of a run that was not; stochastic rounding too");
    for (const std::string& more : {half, half + "-w 0 "}) {
        const std::string whole = "whole16" + std::to_string(more.size()),
                          parts = "parts16" + std::to_string(more.size());
        EXPECT(run(tiny(more + "-o " + dir(whole))).status == 0);
        EXPECT(run(tiny(more + "-x 12 -o " + dir(parts))).status == 0 &&
               run(tiny(more + "-y 1 -o " + dir(parts))).status == 0);
        EXPECT(same_files(weights(whole, 30), weights(parts, 30)));
    }
    start_test("a bf16 run goes on in fp32 from its master weights, and back");
    EXPECT(run(tiny(half + "-x 10 -o " + dir("there"))).status == 0 &&
           run(tiny(flags + "--precision fp32 -x 20 -y 1 -o " + dir("there"))).status == 0);
    const Outcome back = run(tiny(half + "-y 1 -o " + dir("there")));
    Steps late = steps_of(exact);
    late.losses.erase(late.losses.begin(), late.losses.begin() + std::min<size_t>(20, late.losses.size()));
    EXPECT(contains(back.out, "resumed at step 20") && apart(steps_of(back).losses, late.losses, 10) <= LOSS16);
    start_test("bf16 generates, and its model file is half as large");
    const Outcome sample = run(tiny("--precision bf16 -x 0 -s 1 -g 20 -e " + weights("there", 30)));
    EXPECT(sample.status == 0 && contains(sample.out, "generating"));
    struct stat a, b;
    EXPECT(stat(weights("there", 20).c_str(), &a) == 0 && stat(weights("there", 30).c_str(), &b) == 0 &&
           a.st_size - 1024 == 2 * (b.st_size - 1024));
}

static void document_mask() {
    const std::string flags = "-e L2C32H2T16V257 -l 1e-2 -k constant -d 64 -x 6 -v 3 -m -1 ";
    const auto masked = [&](int end_of_text, const std::string& more) {
        return tiny(flags + "--document-mask 1 --tokenizer " + tokenizer_with(end_of_text) + " " + more);
    };
    const auto val_losses = [](const Outcome& r) {
        std::string lines;
        for (size_t at = 0; (at = r.out.find("val loss", at)) != r.out.npos; at++) lines += r.out.substr(at, 17) + "\n";
        return lines;
    };
    const auto same = [&](const Outcome& a, const Outcome& b) {
        const Steps x = steps_of(a), y = steps_of(b);
        return x.losses.size() == 6 && x.losses == y.losses && x.norms == y.norms && val_losses(a) == val_losses(b);
    };
    const Outcome plain = run(tiny(flags)), documents = run(masked(97, "-o " + dir("documents")));
    start_test("--document-mask 1 changes losses in training and validation, unless the data has no end of text");
    EXPECT(documents.status == 0 && !same(plain, documents) && val_losses(plain) != val_losses(documents));
    EXPECT(same(plain, run(masked(256, ""))));
    start_test("--document-mask 1: the same numbers on another number of threads, with other recomputation");
    EXPECT(same(documents, run(masked(97, "--threads 1 -r 3"))));
    start_test("--document-mask 1 is kept in run.json");
    EXPECT(run(masked(97, "-x 3 -o " + dir("half"))).status == 0);
    const Outcome resumed = run("./train_gpt2_cpu --threads 2 -x 6 -y 1 -o " + dir("half"));
    EXPECT(resumed.status == 0 && same_files(model_path(dir("half"), 6), model_path(dir("documents"), 6)));
    start_test("--document-mask 1 where the end-of-text token is not known: exit 2");
    EXPECT(refused(run(tiny("--document-mask 1")), 2, "--document-mask 1"));
    EXPECT(refused(run(tiny("--document-mask 1 --tokenizer " + dir("nowhere"))), 2, "nowhere"));
    start_test("--plan lists the document mask");
    EXPECT(contains(run(masked(97, "--plan")).out, "document_starts") &&
           !contains(run(tiny("--plan")).out, "document"));
}

static void windows() {
    const std::string flags = "-e L2C32H2T16V257 -l 1e-2 -k constant -d 64 -x 6 -v 3 -m -1 ", window = "--window 4 ";
    const auto same = [&](const Outcome& a, const Outcome& b) {
        const Steps x = steps_of(a), y = steps_of(b);
        return x.losses.size() == 6 && x.losses == y.losses && x.norms == y.norms;
    };
    const auto val_loss = [](const Outcome& r) {
        return r.out.substr(std::min(r.out.rfind("val loss"), r.out.size()), 17);
    };
    const Outcome plain = run(tiny(flags)), local = run(tiny(flags + window + "-o " + dir("local")));
    const Outcome every_other = run(tiny(flags + "--window 4,alternate -o " + dir("every_other")));
    start_test("--window changes losses, in all layers others than in every other one; not if it is as long as T");
    EXPECT(local.status == 0 && every_other.status == 0 && !same(plain, local) && !same(local, every_other));
    EXPECT(same(plain, run(tiny(flags + "--window 16"))) && same(plain, run(tiny(flags + "--window 0"))));
    start_test("--window: the same numbers on another number of threads, with other recomputation");
    EXPECT(same(local, run(tiny(flags + window + "--threads 1 -r 3"))));
    EXPECT(same(every_other, run(tiny(flags + "--window 4,alternate --threads 1 -r 4"))));
    start_test("--window is kept: a run goes on with its own, and with no other; files of models have it");
    EXPECT(run(tiny(flags + window + "-x 3 -o " + dir("window"))).status == 0);
    const std::string goes_on = "./train_gpt2_cpu --threads 2 -x 6 -y 1 -o " + dir("window");
    for (const char* other : {" --window 5", " --window 0", " --window 4,alternate"})
        EXPECT(refused(run(goes_on + other), 2, "--window"));
    EXPECT(run(goes_on).status == 0 && same_files(model_path(dir("window"), 6), model_path(dir("local"), 6)));
    const std::string evaluates = "-x 0 -v 1 -m -1 -e " + model_path(dir("local"), 6);
    const Outcome own = run(tiny(evaluates)), whole = run(tiny(evaluates + " --window 0"));
    EXPECT(val_loss(own) != "" && val_loss(own) == val_loss(local) && val_loss(whole) != val_loss(own));
    EXPECT(val_loss(run(tiny(evaluates + " --window 4"))) == val_loss(own));
    start_test("--window that is none: exit 2");
    for (const char* bad : {"-1", "x", "4,other", "0,alternate", "4,", "4,alternate,", "1048577", "1.5", ",alternate"})
        EXPECT(refused(run(tiny(flags + "--window " + bad)), 2, format("--window %s", bad)));
    start_test("--plan counts the FLOPs of windows");
    const auto flops = [&](const std::string& more) {
        const std::string text = run(tiny("-e L2C32H2T1024V257 -t 1024 -b 1 --plan " + more)).out;
        const size_t at = text.find("FLOPs");
        return at == text.npos ? std::string() : text.substr(at, text.find('\n', at) - at);
    };
    EXPECT(flops("") != "" && flops("--window 64") != flops("") &&
           flops("--window 64") != flops("--window 64,alternate"));
    EXPECT(flops("--window 1024") == flops("") && flops("--window 0") == flops(""));
}

int main() {
    make_test_folder();
    flags();
    files();
    lines_and_logs();
    hellaswag();
    bf16_runs();
    rounded_weights();
    document_mask();
    windows();
    return report_and_clean();
}
