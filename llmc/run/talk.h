// Talking to a model: -x 0 on a terminal asks for prompts and continues them. The model knows
// nothing of the lines before: GPT-2 continues text, it does not answer. Ctrl-C stops a sample and
// asks for the next prompt; Ctrl-D ends.
#pragma once
#include "llmc/run/generate.h"
#include "llmc/run/line_editor.h"

// Whether the user is asked for prompts: not where a flag asks for an evaluation or a sample, nor
// in several processes.
inline bool wants_conversation(const Options& o) {
    if (o.max_steps != 0 || !o.prompt.empty() || comm.processes > 1) return false;
    for (const char* flag : {"--prompt", "--val-data", "--val-every", "--val-max-steps", "--hellaswag",
                             "--hellaswag-data", "--sample-every"})
        if (o.given.count(flag)) return false;
    return isatty(0) && stdout_is_terminal();
}

// Asks for prompts and continues each of them, until the user or a signal ends that. The first
// line has the continuation that --prompt gives.
inline void converse(Run& run) {
    run.logger.note("each line is a prompt of its own, which the model continues; Ctrl-C stops it, Ctrl-D ends");
    stop.conversing = true;
    LineEnd end = LINE_ENTERED;
    int64_t lines = 0;
    std::string line;
    while (end != LINE_NONE && !stop.signal) {
        stop.interrupted = 0;
        end = read_line("> ", line);
        if (end == LINE_INTERRUPTED && !stop.signal && line.empty()) run.logger.line("(Ctrl-D ends)");
        if (end != LINE_ENTERED || line.find_first_not_of(" \t\r\n") == line.npos) continue;
        std::vector<int> tokens;
        encode(run.tokenizer, line, tokens);
        sample_text(run, line, tokens, run.state.step + lines++);
    }
    stop.conversing = false;
    if (!stop.signal) run.logger.line("%s", "");
}
