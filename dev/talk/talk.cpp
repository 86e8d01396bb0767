// A conversation with a model: each line is a prompt of its own, which the model continues. It
// knows nothing of the lines before: GPT-2 continues text, it does not answer. One that was trained
// on conversations does: with --chat 1 each line is a turn of the user, in the template of
// dev/data/chat.h, and the model has the turns before. Ctrl-C stops a sample and asks for the next
// prompt; Ctrl-D ends. Without a terminal, the lines of stdin are continued one after the other.
//
//     make talk && ./talk -e log_quickstart --temperature 0.8
//
// It is a run of the CPU trainer's model with -x 0 --prompt: the first line has the continuation
// that --prompt gives.
#define TRAINER_WITHOUT_MAIN
#include "train_gpt2_cpu.cpp"

#include <numeric>
#include "dev/data/chat.h"
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
    printf("  %-26s %s\n", "--chat 1", "the lines are turns of one conversation; the model was trained on such");
}

// Removes --chat, which the trainers do not have, from the command. Returns its value.
static bool take_chat(std::vector<char*>& command) {
    bool chat = false;
    for (size_t i = 1; i < command.size();) {
        const std::string word = command[i];
        const bool whole = word.rfind("--chat=", 0) == 0, alone = word == "--chat";
        if (!whole && !alone) {
            i++;
            continue;
        }
        const std::string value = whole ? word.substr(7) : i + 1 < command.size() ? command[i + 1] : "";
        if (value != "0" && value != "1") usage_error("--chat %s: 0 and 1 are accepted", value);
        chat = value == "1";
        command.erase(command.begin() + i, command.begin() + i + (whole ? 1 : 2));
    }
    return chat;
}

// The turns of a conversation so far, as tokens: those of each question with its answer.
struct Chat {
    bool on = false;
    std::vector<std::vector<int>> exchanges;
    int64_t turns = 0;
};

// Answers a turn of the user, and keeps both. The oldest turns are forgotten when the model's
// context has no room for them, for the question, and for half of a context or -g tokens of answer.
static void answer(Run& run, Chat& chat, const std::string& line) {
    const int64_t context_tokens = run.model.sizes.cache_T,
                  room = std::min(run.options.sample_tokens, context_tokens / 2);
    const std::vector<TextPart> question = parts_of({{"user", line}, {"assistant", ""}});
    std::vector<int> exchange;
    encode(run.tokenizer, question[0].text, exchange);
    Context context;
    const auto tokens = [&] {
        return std::accumulate(chat.exchanges.begin(), chat.exchanges.end(), (int64_t)exchange.size() + 1,
                               [](int64_t n, const std::vector<int>& kept) { return n + (int64_t)kept.size(); });
    };
    while (!chat.exchanges.empty() && tokens() + room > context_tokens) chat.exchanges.erase(chat.exchanges.begin());
    context.tokens.push_back(run.tokenizer.end_of_text);
    for (const std::vector<int>& kept : chat.exchanges)
        context.tokens.insert(context.tokens.end(), kept.begin(), kept.end());
    context.tokens.insert(context.tokens.end(), exchange.begin(), exchange.end());
    rewind(context, (int64_t)context.tokens.size(), context_tokens);
    GenerationTime time;
    const std::string said =
        continue_text(run, context, generator_for(run.options.seed, RANDOM_SAMPLE, chat.turns++, 0), time);
    run.logger.line("%s", "");
    if (!run.options.quiet) print_generation_time(time);
    encode(run.tokenizer, parts_of({{"assistant", said}})[1].text, exchange);
    chat.exchanges.push_back(exchange);
}

// Ctrl-C ends the sample that is being written, not the program: where the user is asked for lines.
static void on_ctrl_c(int) {
    if (!stop.signal) stop.signal = SIGINT;
}

// Continues each line, until there are no more or a signal ends that. Returns the exit status.
static int converse(Run& run, Chat& chat) {
    const bool asks = isatty(0) && run.logger.terminal;
    const auto stopped = [&] { return stop.signal && !(asks && stop.signal == SIGINT); };
    if (asks) {
        run.logger.note(chat.on ? "each line is a turn, which the model answers; Ctrl-C stops it, Ctrl-D ends"
                                : "each line is a prompt of its own, which the model continues; Ctrl-C stops it, "
                                  "Ctrl-D ends");
        signal(SIGINT, on_ctrl_c);
    }
    int64_t lines = 0;
    std::string line;
    for (LineEnd end = LINE_ENTERED; end != LINE_NONE && !stopped();) {
        if (asks && stop.signal == SIGINT) stop.signal = 0;
        end = asks ? read_line("> ", line) : read_plain_line("", line);
        if (end == LINE_INTERRUPTED && !stopped() && line.empty()) run.logger.line("(Ctrl-D ends)");
        if (end != LINE_ENTERED || line.find_first_not_of(" \t\r\n") == line.npos) continue;
        if (chat.on) {
            answer(run, chat, line);
            continue;
        }
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
int talk(Run& run, Chat& chat) {
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
    return converse(run, chat);
}

int main(int argc, char** argv) {
    return run_program([&] {
        Run run;
        Options& o = run.options;
        Chat chat;
        std::vector<char*> command(argv, argv + argc);
        chat.on = take_chat(command);
        o = options_of_command((int)command.size(), command.data());
        if (o.help) return print_flags(o), 0;
        for (const std::string& name : o.given)
            if (!FLAGS.count(name))
                usage_error("%s has no effect on a conversation; --help lists what is accepted", name);
        if (chat.on && (o.given.count("--stop") || o.samples > 1))
            usage_error(
                "--chat 1 has one answer for each turn, up to its end; --stop and --samples have no effect on it");
        if (chat.on) o.stop = END_OF_TURN;
        [[maybe_unused]] const bool in_bf16 = computes_in_bf16(o);
#ifndef KERNELS_REFERENCE
        if (in_bf16) return talk<bf16>(run, chat);
#endif
        return talk<float>(run, chat);
    });
}
