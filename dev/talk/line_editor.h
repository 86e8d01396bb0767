// Reads lines from the terminal, or what else stdin is. Where the program is built with GNU
// readline, a line can be edited, and the lines before it can be called back (Up; Ctrl-R searches):
// those of this program's run, no file keeps them. Without readline, or on a terminal that cannot
// move its cursor (TERM=dumb), a line is what the terminal sends. A signal ends the waiting at
// once.
#pragma once
#include <poll.h>
#include <unistd.h>
#include <clocale>
#include <cstring>
#include <string>
#include "llmc/run/stop.h"
#ifdef USE_READLINE
#include <readline/history.h>
#include <readline/readline.h>
#endif

enum LineEnd { LINE_ENTERED, LINE_INTERRUPTED, LINE_NONE };  // NONE: Ctrl-D, or the terminal is gone

// Waits until there is something to read; false once a signal came. One that comes just before
// poll() is noticed when that has timed out.
inline bool wait_for_input() {
    struct pollfd input = {0, POLLIN, 0};
    while (!stop.signal)
        if (poll(&input, 1, 100) > 0) return true;
    return false;
}

inline LineEnd read_plain_line(const char* prompt, std::string& line) {
    static std::string rest;  // what was read with the line before
    printf("%s", prompt);
    fflush(stdout);
    size_t end;
    line.clear();
    while ((end = rest.find('\n')) == rest.npos) {
        char bytes[4096];
        if (!wait_for_input()) {
            if (*prompt) printf("\n");
            return line.swap(rest), LINE_INTERRUPTED;
        }
        const ssize_t n = read(0, bytes, sizeof(bytes));
        if (n <= 0) return line.swap(rest), line.empty() ? LINE_NONE : LINE_ENTERED;
        rest.append(bytes, n);
    }
    line = rest.substr(0, end);
    rest.erase(0, end + 1);
    return LINE_ENTERED;
}

#ifdef USE_READLINE
// readline hands over a line by calling a function of C.
struct EditedLine {
    bool done = false;
    char* text = nullptr;
};
inline EditedLine edited_line;
inline void take_edited_line(char* text) {
    edited_line = {true, text};
    rl_callback_handler_remove();
}

inline LineEnd read_edited_line(const char* prompt, std::string& line) {
    rl_catch_signals = 0;  // stop.h has them
    edited_line = {};
    rl_callback_handler_install(prompt, take_edited_line);
    rl_bind_key('\t', rl_insert);  // not names of files
    while (!edited_line.done && wait_for_input()) rl_callback_read_char();
    if (!edited_line.done) {
        line = rl_line_buffer;
        rl_free_line_state();
        rl_callback_sigcleanup();
        rl_callback_handler_remove();
        printf(stop.signal == SIGINT ? "^C\n" : "\n");
        return LINE_INTERRUPTED;
    }
    if (!edited_line.text) return LINE_NONE;
    line = edited_line.text;
    free(edited_line.text);
    const HIST_ENTRY* last = history_get(history_base + history_length - 1);
    if (line.find_first_not_of(" \t") != line.npos && (!last || line != last->line)) add_history(line.c_str());
    return LINE_ENTERED;
}
#endif

// Reads the next line, or what was entered of it when a signal came.
inline LineEnd read_line(const char* prompt, std::string& line) {
#ifdef USE_READLINE
    // Characters of more than one byte, also where the environment names no language.
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    const char* terminal = getenv("TERM");
    if (terminal && *terminal && strcmp(terminal, "dumb") != 0) return read_edited_line(prompt, line);
#endif
    return read_plain_line(prompt, line);
}
