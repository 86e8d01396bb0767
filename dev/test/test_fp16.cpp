// fp16: its conversions, the loss scale, and runs of the GPU trainer in the simulator whose
// gradients overflow. test_gpt2.cu compares the kernels and the model with references.
#include "dev/test/recorded.h"
#include "dev/test/several.h"
#include "llmc/options/number_formats.h"
#include "llmc/base/bf16.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/options/number_formats.h"

static const std::string SIM_FP16 = "build/FP16/test_gpt2sim train";

// -------------------------------------------------------------------------------------------------
// numbers

static fp16 of_bits(uint16_t bits) {
    fp16 value;
    value.bits = bits;
    return value;
}
// By the definition of the format; infinities and NaN apart.
static double value_of(int bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static void conversions() {
    start_test("fp16: all numbers to fp32 and back");
    for (int bits = 0; bits < 1 << 16; bits++) {
        const float value = of_bits((uint16_t)bits);
        const bool special = (bits >> 10 & 31) == 31, nan = special && (bits & 1023);
        if (nan) EXPECT(std::isnan(value) && std::isnan((float)fp16(value)));
        else
            EXPECT((special ? std::isinf(value) && std::signbit(value) == bits >> 15 : value == value_of(bits)) &&
                   fp16(value).bits == bits);
    }
    start_test("fp16: rounding to nearest, ties to even, around the middle between all neighbours");
    for (int bits = 0; bits < 0x7C00; bits++)
        for (int sign : {0, 0x8000}) {
            const double low = value_of(bits), high = bits == 0x7BFF ? 65536 : value_of(bits + 1);
            const float middle = (float)((low + high) / 2), factor = sign ? -1 : 1;
            const auto rounded = [&](float x) { return fp16(factor * x).bits - sign; };
            EXPECT(rounded(middle) == bits + (bits & 1));
            EXPECT(rounded(std::nextafter(middle, 0.0f)) == bits);
            EXPECT(rounded(std::nextafter(middle, 1e9f)) == bits + 1);
        }
    EXPECT(std::isinf((float)fp16(1e30f)) && fp16(-1e-30f).bits == 0x8000);
}

static void scales() {
    start_test("the loss scale: halved by an overflow, doubled after 2000 steps without one");
    Options o;
    LossScale s = begin_scaling(format_of<fp16>(), o, {});
    EXPECT(s.scale == 65536 && s.good_steps == 0);
    for (int i = 0; i < 1999; i++) s = next_scale(format_of<fp16>(), s, o, false);
    EXPECT(s.scale == 65536 && s.good_steps == 1999 && next_scale(format_of<fp16>(), s, o, false).scale == 131072);
    s = next_scale(format_of<fp16>(), s, o, true);
    EXPECT(s.scale == 32768 && s.good_steps == 0 && begin_scaling(format_of<fp16>(), o, s).scale == 32768);
    for (int i = 0; i < 2000; i++) s = next_scale(format_of<fp16>(), s, o, false);
    EXPECT(s.scale == 65536 && s.good_steps == 0);
    for (int i = 0; i < 16; i++) EXPECT(can_lower(s, o)), s = next_scale(format_of<fp16>(), s, o, true);
    EXPECT(s.scale == 1 && !can_lower(s, o));
    s = {std::ldexp(1.0, 127), 1999};
    EXPECT(next_scale(format_of<fp16>(), s, o, false).scale == s.scale);  // twice that is infinite in fp32
    start_test("the loss scale: a stated one stays, and other formats have none");
    EXPECT(next_scale(format_of<bf16>(), begin_scaling(format_of<bf16>(), o, {}), o, false).scale == 1 &&
           !can_lower({1, 0}, o));
    o.loss_scale = "1000";
    s = begin_scaling(format_of<fp16>(), o, {65536, 7});
    EXPECT(s.scale == 1000 && next_scale(format_of<fp16>(), s, o, false).scale == 1000 && !can_lower(s, o));
}

// -------------------------------------------------------------------------------------------------
// runs

static const std::string TRAINING = "-d 64 -l 3e-3 -u 3 -q 0.1 -c 0.1 --grad-clip 0.8 -f 0 ";

static void same_numbers() {
    start_test("20 steps: the fp16 build, within the rounding of fp16; recomputation and fused GELU too");
    const Outcome cpu = run(tiny_run(CPU, TRAINING + "-x 20"));
    for (const char* more : {"", "-r 3 -ge 2", "--loss-scale 1000"})
        EXPECT(agree(run(tiny_run(SIM_FP16, TRAINING + "-x 20 " + more)), cpu, 20, LOSS16 / 4, NORM16 / 4));
    start_test("20 steps of LAMB, whose directions are fp32");
    const std::string lamb = "-x 20 -l 3e-2 --optimizer lamb ";
    EXPECT(agree(run(tiny_run(SIM_FP16, lamb)), run(tiny_run(CPU, lamb)), 20, LOSS16 / 4, NORM16 / 4));
    start_test("20 steps on two processes, with and without ZeRO");
    const Outcome one = run(several(CPU, 1, "-x 20 -l 3e-3"));
    for (const char* stage : {"-z 0", "-z 1"})
        EXPECT(agree(run(several(SIM_FP16, 2, std::string("-x 20 -l 3e-3 ") + stage)), one, 20, LOSS16 / 4, NORM16));
}

// A model whose last layer norm has gains of that size: so much larger are all gradients.
static std::string model_with_gain(float gain) {
    const std::string name = format("gain%g", gain), path = model_path(dir(name), 1);
    EXPECT(run(tiny_run(CPU, "-x 1 -l 0 --overwrite 1 -o " + dir(name))).status == 0);
    std::string bytes = read_whole(path);
    const GPT2Config c = [&] {
        FileReader file(path);
        GPT2Config config;
        return read_model_header(file, config), config;
    }();
    for (int64_t i = 0; i < c.C; i++) memcpy(&bytes[bytes.size() - 8 * c.C + 4 * i], &gain, 4);
    const std::string changed = dir(name) + ".bin";
    write_whole(changed, bytes);
    return changed;
}
static double scale_of(const std::string& name, int64_t step) { return at(name, step, METRIC_LOSS_SCALE); }

// The bytes between the header and the checksum of a state file.
static std::string states_in(const std::string& path) {
    const std::string bytes = read_whole(path);
    EXPECT(bytes.size() > sizeof(StateHeader) + 8);
    return bytes.substr(sizeof(StateHeader), bytes.size() - sizeof(StateHeader) - 8);
}

static void overflow() {
    const std::string training = "-x 14 -n 2 -l 1e-3 -e " + model_with_gain(100) + " -o ";
    start_test("gradients that overflow: the step is skipped, the scale halved, until it fits");
    const Outcome whole = run(tiny_run(SIM_FP16, training + dir("whole")));
    EXPECT(whole.status == 0 && contains(whole.out,
                                         "step 1: update skipped, a gradient overflowed at loss scale "
                                         "65536, which is 32768 from here on"));
    int64_t skipped = 0, good_steps = 0, all_skipped = 0;
    double scale = 65536;
    for (int64_t s = 0; s < 14; s++) {
        EXPECT(std::isfinite(at("whole", s, METRIC_LOSS)) && scale_of("whole", s) == scale);
        const bool good = std::isfinite(at("whole", s, METRIC_NORM));
        if (skipped == s && !good) skipped++;
        if (!good) scale /= 2, all_skipped++;
        good_steps = good ? good_steps + 1 : 0;
    }
    EXPECT(skipped >= 4 && good_steps >= 2 && at("whole", 13, METRIC_LOSS) < 0.8 * at("whole", 0, METRIC_LOSS));
    start_test("gradients that overflow: a skipped step changes no weight");
    EXPECT(same_files(model_path(dir("whole"), 2), model_path(dir("whole"), 4)) &&
           !same_files(model_path(dir("whole"), 2), model_path(dir("whole"), 14)));
    for (const char* name : {"lion", "lamb", "muon", "adafactor", "sm3", "adamw8bit", "adamw16bit"}) {
        start_test(std::string(name) + ": a step whose gradients overflow changes no weight and no state");
        const Outcome r = run(tiny_run(SIM_FP16, training + dir(name) + " -x 12 --optimizer " + name));
        EXPECT(r.status == 0 && same_files(model_path(dir(name), 2), model_path(dir(name), 4)) &&
               !same_files(model_path(dir(name), 2), model_path(dir(name), 12)));
        EXPECT(states_in(state_path(dir(name), 2, 0)) == states_in(state_path(dir(name), 4, 0)));
    }
    start_test("gradients that overflow: stopped between two skipped steps and resumed, the same bits");
    EXPECT(run(tiny_run(SIM_FP16, training + dir("parts") + " -x 2")).status == 0);
    EXPECT(run(tiny_run(SIM_FP16, training + dir("parts") + " -y 1")).status == 0);
    EXPECT(same_files(model_path(dir("whole"), 14), model_path(dir("parts"), 14)) &&
           same_files(state_path(dir("whole"), 14, 0), state_path(dir("parts"), 14, 0)));
    StateHeader header;
    EXPECT(newest_checkpoint(dir("parts"), header) == 14 && header.version == STATE_VERSION_FP16 &&
           header.loss_scale.scale == scale && header.loss_scale.good_steps == good_steps &&
           header.loss_scale.skipped == all_skipped);
    start_test("a loss scale that is stated and overflows ends the run with one sentence");
    const Outcome stated = run(tiny_run(SIM_FP16, training + dir("stated") + " --loss-scale 65536"));
    EXPECT(stated.status == 1 && one_line(stated.err) && contains(stated.err, "norm of step 1 is not finite") &&
           contains(stated.err, "a lower --loss-scale, or dynamic, may help"));
}

// With the same batch in every step, a run that has skipped some steps does what a run does that
// begins with a scale at which nothing overflows.
static void skipped_steps_are_no_updates() {
    const std::string training = "-k constant -u 0 -l 1e-3 -n 4 --overfit-one-batch 1 --overwrite 1 -e " +
                                 model_with_gain(100) + " --optimizer ";
    for (const char* name : {"adamw", "adafactor"}) {
        start_test(std::string(name) + ": steps whose gradients overflow are no updates");
        EXPECT(run(tiny_run(SIM_FP16, training + name + " -x 12 -o " + dir("skipping"))).status == 0);
        int64_t skipped = 0;
        while (skipped < 8 && !std::isfinite(at("skipping", skipped, METRIC_NORM))) skipped++;
        const int64_t updates = 12 - skipped;
        EXPECT(skipped >= 4 && updates >= 4);
        const std::string stated = format(" -x %d --loss-scale %g -o ", updates, 65536 / exp2(skipped));
        EXPECT(run(tiny_run(SIM_FP16, training + name + stated + dir("fitting"))).status == 0);
        EXPECT(same_files(model_path(dir("skipping"), 12), model_path(dir("fitting"), updates)));
    }
}

static void endless_overflow() {
    start_test("gradients that overflow at any scale end the run with one sentence");
    const Outcome r = run(tiny_run(SIM_FP16, "-x 40 -b 1 -t 1 -d 1 -e " + model_with_gain(2e4f)));
    EXPECT(contains(r.out, "a gradient overflowed at loss scale 2, which is 1 from here on"));
    EXPECT(r.status == 1 && one_line(r.err) && contains(r.err, "the gradient norm of step 1") &&
           contains(r.err, "is not finite") && contains(r.err, "a lower -l or a longer -u may help"));
    EXPECT(contains(r.out, "first not finite: the gradient of "));
}

static void checkpoints() {
    start_test("a run goes on in another number format, from fp16 and to fp16");
    const std::string to = TRAINING + "-n 10 -x 20 -o " + dir("formats"), on = to + " -y 1 -x ";
    const Outcome whole = run(tiny_run(CPU, TRAINING + "-x 40 -k constant"));
    EXPECT(run(tiny_run(SIM_FP16, to + " -k constant -x 10")).status == 0);
    EXPECT(run(tiny_run(CPU, on + "20 --precision fp32")).status == 0);
    StateHeader header;
    EXPECT(newest_checkpoint(dir("formats"), header) == 20 && header.version == STATE_VERSION);
    EXPECT(run(tiny_run(SIM_FP16, on + "30 --precision fp16")).status == 0);
    EXPECT(scale_of("formats", 29) == 65536);
    EXPECT(run(tiny_run(SIM16, on + "40 --precision bf16")).status == 0);
    const Steps steps = steps_of(whole);
    for (int64_t s : {9, 19, 29, 39}) EXPECT(near(at("formats", s, METRIC_LOSS), steps.losses[s], LOSS16));
    start_test("a checkpoint in fp16 has as many bytes as --plan says");
    const Outcome plan = run(tiny_run(SIM_FP16, "-x 10 --plan"));
    EXPECT(contains(plan.out, format("a checkpoint: %d bytes", checkpoint_bytes(dir("formats"), 10))));
    start_test("a loss scale in a state file that makes no sense is refused");
    const std::string path = state_path(dir("whole"), 14, 0);
    std::string bytes = read_whole(path);
    const double zero = 0;
    memcpy(&bytes[offsetof(StateHeader, loss_scale)], &zero, 8);
    Checksum sum;
    sum.add(bytes.data(), bytes.size() - 8);
    const uint64_t value = sum.value();
    memcpy(&bytes[bytes.size() - 8], &value, 8);
    write_whole(path, bytes);
    StateHeader h;
    EXPECT(contains(state_problem(path, 14, 0, h, nullptr), "is damaged"));
}

static void refusals() {
    start_test("fp16: flags that cannot work get one sentence");
    const auto refused = [](const std::string& program, const std::string& flags, const char* sentence) {
        return ::refused(run(tiny_run(program, "-x 1 " + flags)), 2, sentence);
    };
    for (const char* value : {"0", "-2", "1e99", "nan", "static", "1e-60", "1e-39"})
        EXPECT(refused(SIM_FP16, format("--loss-scale %s", value), "accepted: dynamic, or a number above 0"));
    EXPECT(refused(SIM_FP16, "-w 0", "-w 1 is accepted") && refused(SIM_FP16, "--precision bf16", "PRECISION=BF16"));
    EXPECT(refused(SIM16, "--loss-scale 1024", "only fp16 has one") &&
           refused(SIM16, "--precision fp16", "PRECISION=FP16"));
    EXPECT(refused(CPU, "--loss-scale 1024", "only fp16 has one") && refused(CPU, "--precision fp16", "is for GPUs"));
}

int main() {
    make_test_folder();
    conversions();
    scales();
    same_numbers();
    overflow();
    skipped_steps_are_no_updates();
    endless_overflow();
    checkpoints();
    refusals();
    return report_and_clean();
}
