// What a run prints. stdout has one line per step. Long work shows its progress: on a terminal in a
// last line that is drawn over itself, elsewhere on stderr, if nothing was printed for a while.
// run_files.h is about what a run records in files.
#pragma once
#include <sys/ioctl.h>
#include <string>
#include "llmc/base/clock.h"
#include "llmc/base/text.h"

// A text as it fits in the terminal: the end of a wider one, because a line that wraps could not be
// drawn over. Bytes count as columns.
inline std::string fit_terminal(const std::string& text) {
    struct winsize size {};
    if (ioctl(1, TIOCGWINSZ, &size) != 0 || size.ws_col < 8 || text.size() < size.ws_col) return text;
    size_t begin = text.size() - (size.ws_col - 4);
    while (((unsigned char)text[begin] & 0xC0) == 0x80) begin++;  // not in the middle of a character
    return "..." + text.substr(begin);
}

// How long nothing is printed, where stdout is no terminal, before a line of progress is: at first,
// and after such a line.
constexpr double FIRST_SILENCE_S = 10, SILENCE_S = 30;

struct Logger {
    bool terminal = false;  // stdout is one
    bool in_work = false;   // the terminal's last line is one of progress
    bool silent = false;    // all ranks but 0
    bool quiet = false;     // --quiet 1
    double silent_since = now_seconds(), silence_s = FIRST_SILENCE_S;

    void clear_line_in_work() {
        if (in_work) printf("\r\033[K");
        in_work = false;
    }
    // Shows progress: on a terminal in a line that whatever is printed next replaces; elsewhere in
    // a line on stderr, if nothing was printed for silence_s.
    void progress(const std::string& text) {
        if (silent || quiet) return;
        if (terminal) {
            clear_line_in_work();
            printf("%s", fit_terminal(text).c_str());
            fflush(stdout);
            in_work = true;
        } else if (now_seconds() - silent_since >= silence_s) {
            fprintf(stderr, "%s\n", text.c_str());
            silent_since = now_seconds(), silence_s = SILENCE_S;
        }
    }
    void print_line(const std::string& text) {
        clear_line_in_work();
        printf("%s\n", text.c_str());
        fflush(stdout);
        silent_since = now_seconds(), silence_s = FIRST_SILENCE_S;
    }
    // Prints a line to stdout, on rank 0.
    template <class... T>
    void line(const char* fmt, const T&... values) {
        if (!silent) print_line(format(fmt, values...));
    }
    // Prints a line to stdout, on rank 0, unless --quiet 1 leaves it out.
    template <class... T>
    void note(const char* fmt, const T&... values) {
        if (!silent && !quiet) print_line(format(fmt, values...));
    }
};

// A unit, and its thousandth, which is shown where a total is below ten of the unit.
struct SmallerUnit {
    const char *unit, *thousandth;
};
constexpr SmallerUnit SMALLER_UNITS[] = {
    {"MB", "kB"}, {"kB", "bytes"}, {"million", "thousand"}, {"thousand", "values"}};

// How long work takes at least that a terminal shows the progress of: what comes and goes at once
// would flicker.
constexpr double FLICKER_S = 0.2;

// The progress of long work: "validation: 12 of 80 windows, 1:20 left". total and done count pieces
// of work, of which unit_size are one unit; a negative total is unknown.
struct Progress {
    Logger& logger;
    std::string what, unit;
    int64_t total, unit_size, done = 0;
    double begin = now_seconds(), shown_at = begin;

    Progress(Logger& to, const std::string& name, int64_t all, const std::string& unit_name, int64_t size = 1)
        : logger(to), what(name), unit(unit_name), total(all), unit_size(size) {
        for (const SmallerUnit& smaller : SMALLER_UNITS)
            if (total >= 0 && total < 10 * unit_size && unit == smaller.unit)
                unit = smaller.thousandth, unit_size /= 1000;
        show();
    }
    Progress(const Progress&) = delete;
    ~Progress() {
        if (!logger.silent) logger.clear_line_in_work();
    }
    void show() {
        shown_at = now_seconds();
        if (logger.terminal && shown_at - begin < FLICKER_S) return;
        if (total < 0) return logger.progress(what + ": " + grouped_text(done / unit_size) + " " + unit);
        const double seconds_left = (shown_at - begin) * (double)(total - done) / (double)std::max<int64_t>(1, done);
        const std::string left = done > 0 ? ", " + duration_text(seconds_left) + " left" : "";
        logger.progress(format("%s: %s of %s %s%s", what, grouped_text(done / unit_size),
                               grouped_text(total / unit_size), unit, left));
    }
    // Says how much is done by now. Shown when another percent is done, or a second has passed.
    void reach(int64_t now_done) {
        const bool another = total > 0 && 100 * now_done / total != 100 * done / total;
        done = total < 0 ? now_done : std::min(now_done, total);
        if (another || now_seconds() - shown_at >= 1) show();
    }
    void add(int64_t more) { reach(done + more); }
};
