// A conversation with a model: each line is a prompt of its own, which the model continues. It
// knows nothing of the lines before: GPT-2 continues text, it does not answer. Ctrl-C stops a
// sample and asks for the next prompt; Ctrl-D ends. Without a terminal, the lines of stdin are
// continued one after the other.
//
//     make talk && ./talk -e log_quickstart --temperature 0.8
//
// It is a run of the CPU trainer's model with -x 0 --prompt: the first line has the continuation
// that --prompt gives.
#define TRAINER_WITHOUT_MAIN
#include "train_gpt2_cpu.cpp"

#include "dev/talk/line_editor.h"
#include "llmc/data/vocabulary.h"
#include "llmc/run/generate.h"
#include "llmc/run/inputs.h"

// The trainers' flags that a conversation takes, beside those that print something and stop.
static const std::set<std::string> FLAGS = {"--model",       "--tokenizer", "--precision", "--threads",
                                            "--seed",        "--quiet",     "--samples",   "--sample-tokens",
                                            "--temperature", "--top-k",     "--top-p",     "--stop"};

static void print_flags(const Options& o) {
    printf("usage: %s -e MODEL [flags]      each line is a prompt, which the model continues\n\n", o.program.c_str());
    for (const OptionRow& row : option_table())
        if (FLAGS.count(row.long_name) || !row.takes_value) printf("  %-26s %s\n", names_of(row).c_str(), row.meaning);
}

// Ctrl-C ends the sample that is being written, not the program: where the user is asked for lines.
static void on_ctrl_c(int) {
    if (!stop.signal) stop.signal = SIGINT;
}

// Continues each line, until there are no more or a signal ends that. Returns the exit status.
static int converse(Run& run) {
    const bool asks = isatty(0) && run.logger.terminal;
    const auto stopped = [&] { return stop.signal && !(asks && stop.signal == SIGINT); };
    if (asks) {
        run.logger.note("each line is a prompt of its own, which the model continues; Ctrl-C stops it, Ctrl-D ends");
        signal(SIGINT, on_ctrl_c);
    }
    int64_t lines = 0;
    std::string line;
    for (LineEnd end = LINE_ENTERED; end != LINE_NONE && !stopped();) {
        if (asks && stop.signal == SIGINT) stop.signal = 0;
        end = asks ? read_line("> ", line) : read_plain_line("", line);
        if (end == LINE_INTERRUPTED && !stopped() && line.empty()) run.logger.line("(Ctrl-D ends)");
        if (end != LINE_ENTERED || line.find_first_not_of(" \t\r\n") == line.npos) continue;
        std::vector<int> tokens;
        encode(run.tokenizer, line, tokens);
        check_prompt_length(run, tokens);
        sample_text(run, line, tokens, lines++);
    }
    if (stopped()) return stop_status(stop.signal);
    if (asks) run.logger.line("%s", "");
    return 0;
}

template <class floatX>
int talk(Run& run) {
    GPT2& model = run.model;
    Options& o = run.options;
    model.format = format_of<floatX>(), model.backend = &cpu_backend<floatX>();
    model.prefill = prefill<floatX>, model.decode = decode<floatX>;
    o.max_steps = 0, o.given.insert("--prompt");  // nothing but generation
    // A prompt may fill the context: the run begins with the memory that samples so long need.
    const int64_t sample_tokens = o.sample_tokens;
    if (sample_tokens > 0) o.sample_tokens = 1 << 20;
    if (!begin_run(run)) return 0;
    o.sample_tokens = sample_tokens;
    check_text_vocabulary("a prompt", o, run.tokenizer, model.layout.config);
    answer_signals("stopping");
    stop.at_once = false;
    return converse(run);
}

int main(int argc, char** argv) {
    return run_program([&] {
        Run run;
        Options& o = run.options;
        o = options_of_command(argc, argv);
        if (o.help) return print_flags(o), 0;
        for (const std::string& name : o.given)
            if (!FLAGS.count(name))
                usage_error("%s has no effect on a conversation; --help lists what is accepted", name);
        if (o.precision == "fp16") usage_error("--precision fp16 is for GPUs; on a CPU fp32 and bf16 are accepted");
        if (o.precision != "bf16") return talk<float>(run);
#ifdef KERNELS_REFERENCE
        usage_error("--precision bf16: the kernels of KERNELS=reference compute in fp32; fp32 is accepted");
#else
        return talk<bf16>(run);
#endif
    });
}
