// What a run says of its tensors, on the CPU and in the simulator, of one process and of several:
// tensors.csv (--log-tensors) against checkpoints, tokens and metrics.csv; and where the first
// value came from that is not finite.
#include <map>
#include <sstream>
#include "dev/test/several.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/run/tensor_log.h"

struct Measured {
    double elems, norm, max, zeros, ratio;
};
// By "what tensor layer"; ratio is NaN where it is empty.
typedef std::map<std::string, Measured> StepTensors;

static std::string csv(const std::string& name) { return read_whole(dir(name) + "/tensors.csv"); }

// The lines of a step. Empty if a line is not as it must be.
static StepTensors tensors_of(const std::string& name, int64_t step) {
    StepTensors found;
    std::istringstream text(csv(name));
    std::string line;
    if (!std::getline(text, line) || line + "\n" != tensor_log_header()) return {};
    while (std::getline(text, line)) {
        std::vector<std::string> columns(1);
        for (char c : line) c == ',' ? columns.push_back("") : columns.back().push_back(c);
        if (columns.size() != 9) return {};
        if (atoll(columns[0].c_str()) != step) continue;
        const auto number = [&](int i) { return columns[i].empty() ? NAN : atof(columns[i].c_str()); };
        const std::string key = columns[1] + " " + columns[2] + (columns[3].empty() ? "" : " " + columns[3]);
        if (!found.insert({key, {number(4), number(5), number(6), number(7), number(8)}}).second) return {};
    }
    return found;
}

// The weights after so many steps, by "tensor layer", without the padding of the vocabulary.
typedef std::map<std::string, std::vector<float>> Weights;
static std::string key_of(int tensor, int64_t layer) {
    return std::string(TENSORS[tensor].name) + (TENSORS[tensor].per_layer ? " " + std::to_string(layer) : "");
}
static Weights weights_of(const std::string& name, int64_t step) {
    FileReader file(model_path(dir(name), step));
    GPT2Config c;
    const int32_t version = read_model_header(file, c);
    Weights weights;
    read_model_tensors(file, version, c, [&](int tensor, int64_t layer, const float* values) {
        const int64_t elems = tensor == WTE ? c.V * c.C : tensor_elems(tensor, c);
        weights[key_of(tensor, layer)].assign(values, values + elems);
    });
    return weights;
}

static bool near(double a, double b, double tolerance) {
    const bool good = std::fabs(a - b) <= tolerance * std::fabs(b) + 1e-30;
    if (!good) printf("    %.9g is not near %.9g\n", a, b);
    return good;
}
static double norm_of(const std::vector<float>& values) {
    double squares = 0;
    for (float v : values) squares += (double)v * v;
    return std::sqrt(squares);
}
static bool measures(const Measured& m, const std::vector<float>& values, double tolerance) {
    double max = 0, zeros = 0;
    for (float v : values) max = std::fmax(max, std::fabs(v)), zeros += v == 0;
    return m.elems == (double)values.size() && near(m.norm, norm_of(values), tolerance) &&
           near(m.max, max, tolerance) && near(m.zeros, zeros / m.elems, 1e-6);
}

// The gradient's norm in metrics.csv, and the norm of what tensors.csv says of its parts.
static bool parts_have_the_norm(const std::string& name, int64_t step, double tolerance) {
    double squares = 0;
    for (const auto& [key, m] : tensors_of(name, step))
        if (key.rfind("gradient", 0) == 0) squares += m.norm * m.norm;
    for (const std::string& line : RunFile{dir(name) + "/metrics.csv"}.lines())
        if (atoll(line.c_str()) == step && isdigit(line[0]))
            return near(std::sqrt(squares), *metric_of(line, METRIC_NORM), tolerance);
    return false;
}

static const std::string FLAGS = "-d 64 -l 1e-3 -k constant -c 0.1 -f 0 --grad-clip 0.5 -n 1 ";
static std::string tiny(const std::string& program, const std::string& name, const std::string& more) {
    return tiny_run(program, FLAGS + "--overwrite 1 -o " + dir(name) + " " + more);
}

static void against_checkpoints(const std::string& program, const std::string& name, bool fp32) {
    start_test(name + ": weights and updates are those of the checkpoints, gradients have the step's norm");
    EXPECT(passed(run(tiny(program, name, "-x 5 --log-tensors 2"))));
    EXPECT(tensors_of(name, 1).empty() && tensors_of(name, 3).empty());
    for (int64_t step : {2, 4}) {
        StepTensors lines = tensors_of(name, step);
        const Weights before = weights_of(name, step), after = weights_of(name, step + 1);
        EXPECT(lines.size() == 3 * after.size() + 3);  // and the residual stream, three times
        for (const auto& [key, p] : after) {
            std::vector<float> change(p);
            for (size_t i = 0; i < p.size(); i++) change[i] -= before.at(key)[i];
            // bf16 weights are the rounded master weights; most updates do not change them
            EXPECT(fp32 ? measures(lines.at("weight " + key), p, 1e-6)
                        : near(lines.at("weight " + key).norm, norm_of(p), 4e-3));
            const Measured& update = lines.at("update " + key);
            if (!fp32) continue;
            EXPECT(near(update.norm, norm_of(change), 1e-3));
            EXPECT(near(update.ratio, norm_of(change) / norm_of(before.at(key)), 1e-3));
        }
        EXPECT(parts_have_the_norm(name, step, 1e-5));
        EXPECT(std::isnan(lines.at("gradient wte").ratio) && std::isnan(lines.at("weight wte").ratio));
    }
    start_test(name + ": the comparison sees the weights of another step");
    const double other = norm_of(weights_of(name, 2).at("wte"));
    EXPECT(std::fabs(tensors_of(name, 2).at("weight wte").norm - other) > 1e-5 * other);
}

static void same_training(const std::string& program, const std::string& name) {
    start_test(name + ": the same weights and log as without --log-tensors, which writes no tensors.csv");
    EXPECT(passed(run(tiny(program, "plain", "-x 5 --overwrite 1"))) && !file_exists(dir("plain/tensors.csv")));
    EXPECT(same_files(dir("plain/model_00000005.bin"), dir(name + "/model_00000005.bin")));
    EXPECT(same_files(dir("plain/state_00000005_00000.bin"), dir(name + "/state_00000005_00000.bin")));
    EXPECT(same_records("plain", name));
    run("rm -r " + dir("plain"));
}

static void residuals() {
    start_test("the residual stream: the sum of two embeddings, and what the layers make of it");
    EXPECT(passed(run(tiny(CPU, "stream", "-x 1 -d 32 -l 0 --shuffle 0 --log-tensors 1"))));
    const Weights w = weights_of("stream", 1);  // the initial ones: the learning rate is 0
    const std::string shard = read_whole(dir("train_0.bin"));
    std::vector<float> stream;
    for (int i = 0; i < 32; i++) {
        uint16_t token;
        memcpy(&token, &shard[sizeof(Header) + 2 * i], 2);
        for (int c = 0; c < 32; c++) stream.push_back(w.at("wte")[token * 32 + c] + w.at("wpe")[i % 16 * 32 + c]);
    }
    const StepTensors lines = tensors_of("stream", 0);
    EXPECT(measures(lines.at("residual encoded"), stream, 1e-6));
    EXPECT(lines.at("residual residual3 0").norm > lines.at("residual encoded").norm);
    EXPECT(lines.at("update wte").norm == 0 && lines.at("update wte").zeros == 1);
    start_test("the residual stream: the same at every recompute level; -r 4 has the last layer of each segment");
    for (const char* level : {"0", "2", "3", "4 --recompute-every 1"}) {
        EXPECT(passed(run(tiny(CPU, "level", "-x 1 -d 32 -l 0 --shuffle 0 --log-tensors 1 -r " + std::string(level)))));
        EXPECT(csv("level") == csv("stream"));
    }
    const std::string segments = "-e L5C32H2T16V256 -x 1 --log-tensors 1 ";
    EXPECT(passed(run(tiny(CPU, "level", segments + "-r 4 --recompute-every 2"))));
    EXPECT(passed(run(tiny(CPU, "stream", segments))));
    StepTensors some = tensors_of("level", 0), all = tensors_of("stream", 0);
    EXPECT(some.size() + 3 == all.size() && some.count("residual residual3 1") && some.count("residual residual3 3"));
    for (const auto& [key, m] : some) EXPECT(m.norm == all.at(key).norm && m.max == all.at(key).max);
    start_test("the residual stream: of codes, what they stand for, of all layers but the last");
    for (const std::string& program : {CPU, SIM16}) {
        EXPECT(passed(run(tiny(program, "stream", segments))));
        EXPECT(passed(run(tiny(program, "level", segments + "-r 2 --compress-activations 1"))));
        some = tensors_of("level", 0), all = tensors_of("stream", 0);
        EXPECT(some.size() + 1 == all.size() && some.count("residual residual3 3"));
        for (const auto& [key, m] : some)
            if (contains(key, "residual3")) EXPECT(near(m.norm, all.at(key).norm, 1e-3) && m.max > 0);
    }
}

static void skipped_updates() {
    start_test("a skipped update is zero");
    const Outcome r = run(tiny(CPU, "skipped", "-x 150 -n 0 -b 1 -d 16 -l 1e-6 -sl 0.5 --log-tensors 1"));
    const size_t at = r.out.find(": update skipped");
    EXPECT(passed(r) && at != r.out.npos);
    const int64_t step = atoll(r.out.c_str() + r.out.rfind(' ', at) + 1) - 1;
    const StepTensors lines = tensors_of("skipped", step);
    EXPECT(lines.count("update wte") && lines.at("update wte").norm == 0 && lines.at("update wte").ratio == 0);
    EXPECT(lines.count("gradient wte") && lines.at("gradient wte").norm > 0);
    EXPECT(tensors_of("skipped", 0).at("update wte").norm > 0);
}

static void resumed() {
    start_test("tensors.csv is cut back on resume: that of a run left alone");
    EXPECT(passed(run(tiny(CPU, "whole", "-x 9 --log-tensors 2"))));
    EXPECT(passed(run(tiny(CPU, "cut", "-x 9 --log-tensors 2"))));
    for (int step = 6; step <= 9; step++) unlink(done_path(dir("cut"), step).c_str());
    const std::string text = csv("cut");
    write_whole(dir("cut/tensors.csv"), text.substr(0, text.size() - 100));
    const Outcome r = run(tiny_run(CPU, "-x 9 -y 1 -o " + dir("cut")));
    EXPECT(passed(r) && contains(r.out, "resumed at step 5") && csv("cut") == text && csv("whole") == text);
    start_test("a run that starts again without --log-tensors leaves no lines of the earlier run");
    EXPECT(passed(run(tiny(CPU, "cut", "-x 1"))) && !file_exists(dir("cut/tensors.csv")));
    start_test("what no run has written is not written over; without -o there is no place for the file");
    make_folder(dir("own"));
    write_whole(dir("own/tensors.csv"), "a,b\n");
    EXPECT(refused(run(tiny(CPU, "own", "-x 1 --log-tensors 1")), 2, "tensors.csv") && csv("own") == "a,b\n");
    EXPECT(refused(run(tiny_run(CPU, "-x 1 --log-tensors 1")), 2, "--log-tensors"));
    EXPECT(refused(run(tiny_run(CPU, "-x 1 --log-tensors -1")), 2, "--log-tensors"));
}

// Runs of one process and of several agree to rounding, tensor by tensor.
static bool agree_in_tensors(const std::string& a, const std::string& b, int64_t step, double tolerance) {
    const StepTensors x = tensors_of(a, step), y = tensors_of(b, step);
    bool good = !x.empty() && x.size() == y.size();
    for (const auto& [key, m] : x) {
        // noise, which Adam turns into full steps (the key third of qkvb has no gradient); and what
        // one micro-step holds, whose size depends on the processes
        if (contains(key, "qkvb") || contains(key, "residual")) continue;
        good = good && y.count(key) && m.elems == y.at(key).elems && near(m.norm, y.at(key).norm, tolerance);
    }
    return good;
}
static void processes(const std::string& program, const std::string& name, double tolerance) {
    start_test(name + ", several processes: the norms of one process; -z 1 the same bits as -z 0");
    const std::string flags = "-x 3 -l 1e-3 -n 1 --log-tensors 2 --overwrite 1 -o ";
    EXPECT(passed(run(several(program, 1, flags + dir("one")))));
    EXPECT(passed(run(several(program, 3, flags + dir("z0")))));
    EXPECT(passed(run(several(program, 3, flags + dir("z1") + " -z 1"))));
    EXPECT(csv("z0") == csv("z1") && agree_in_tensors("z0", "one", 0, tolerance));
    EXPECT(parts_have_the_norm("z1", 2, 1e-5));
}

// Writes a value into the fp32 model file of a run with tiny_run's model.
static void set_weight(const std::string& path, int tensor, int64_t layer, int64_t i, float value) {
    const GPT2Config c{16, 256, 256, 2, 2, 32};
    std::string bytes = read_whole(path);
    int64_t at = sizeof(Header) / 4 + layer * tensor_elems(tensor, c) + i;
    for (int t = 0; t < tensor; t++) at += tensor_elems(t, c) * tensor_layers(t, c);
    memcpy(&bytes[at * 4], &value, 4);
    write_whole(path, bytes);
}
// The sentence with which such a run ends is as it is without the search; the finding is on stdout.
static bool stopped_naming(const Outcome& r, const std::string& found) {
    const bool good = r.status == 1 && contains(r.err, "is not finite; the run stops before this update") &&
                      contains(r.out, "\nfirst not finite: " + found + "\n");
    if (!good) printf("    status %d, stdout: %s\n    stderr: %s\n", r.status, r.out.c_str(), r.err.c_str());
    return good;
}

static void not_finite(const std::string& program, const std::string& name) {
    const std::string model = dir("broken.bin"), flags = "-f 0 --shuffle 0 -x 3 -e " + model + " ";
    const auto fresh_model = [&] {
        EXPECT(passed(run(tiny_run(CPU, "-x 1 -l 0 --overwrite 1 -o " + dir("fresh")))));
        write_whole(model, read_whole(dir("fresh/model_00000001.bin")));
    };
    start_test(name + ": a run that stops says which tensor was not finite first");
    fresh_model();
    for (int64_t i = 0; i < 64; i++) set_weight(model, QKVB, 1, i, 1e20f);
    const std::string atty = "the activation atty of layer 1, in the forward pass of micro-step ";
    const Outcome r = run(tiny_run(program, flags));
    EXPECT(stopped_naming(r, atty + "1") && one_line(r.err));
    EXPECT(stopped_naming(run(tiny_run(program, flags + "-d 64 -r 3")), atty + "1"));
    start_test(name + ": only the second micro-step, and only one of several processes");
    fresh_model();
    const std::string shard = read_whole(dir("train_0.bin"));
    const auto token = [&](int i) {
        uint16_t value;
        memcpy(&value, &shard[sizeof(Header) + 2 * i], 2);
        return value;
    };
    int position = 0;  // where the second window has another token than the first
    while (token(position) == token(16 + position)) position++;
    set_weight(model, WTE, 0, token(16 + position) * 32, 3e38f);
    set_weight(model, WPE, 0, position * 32, 3e38f);
    // The stream is finite elsewhere, but its large values must not reach the loss.
    set_weight(model, LNFW, 0, 0, 0);
    const std::string encoded = "the activation encoded, in the forward pass of micro-step ";
    EXPECT(stopped_naming(run(tiny_run(program, flags + "-b 1 -d 32")), encoded + "2"));
    EXPECT(stopped_naming(run(MPIRUN + ("-np 2 " + tiny_run(program, flags + "-b 1 -d 32 --threads 1"))),
                          encoded + "1 of rank 1"));
    EXPECT(stopped_naming(run(MPIRUN + ("-np 2 " + tiny_run(program, flags + "-b 1 -d 32 --threads 1 -z 1 -r 3"))),
                          encoded + "1 of rank 1"));
}

// With an argument: on the CPU alone.
int main(int argc, char**) {
    make_test_folder();
    against_checkpoints(CPU, "cpu", true);
    same_training(CPU, "cpu");
    residuals();
    skipped_updates();
    resumed();
    processes(CPU, "CPU", 1e-3);
    not_finite(CPU, "CPU");
    if (argc > 1) return report_and_clean();
    against_checkpoints(CPU + " --precision bf16", "cpu16", false);
    against_checkpoints(SIM32, "sim32", true);
    same_training(SIM32, "sim32");
    against_checkpoints(SIM16, "sim16", false);
    processes(SIM16, "bf16 GPU", 4e-2);
    not_finite(SIM32, "fp32 GPU");
    not_finite(SIM16, "bf16 GPU");
    return report_and_clean();
}
