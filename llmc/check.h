// How the program says no. A user's mistake (a flag) ends it with exit status 2, a broken file or
// device with 1; either way with one sentence on stderr that says what, where, and what would be
// accepted. Nothing here returns.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include "llmc/launcher.h"

#define PRINTF_LIKE(fmt_arg, first_arg) __attribute__((format(printf, fmt_arg, first_arg)))

// printf into a std::string.
inline std::string format_list(const char* fmt, va_list args) {
    va_list again;
    va_copy(again, args);
    std::string text(vsnprintf(nullptr, 0, fmt, args), '\0');
    vsnprintf(text.data(), text.size() + 1, fmt, again);
    va_end(again);
    return text;
}
PRINTF_LIKE(1, 2) inline std::string format(const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    const std::string text = format_list(fmt, args);
    va_end(args);
    return text;
}

// True if somebody watches stdout. mpirun gives its children a terminal whatever its own output is,
// so those of a launcher never count.
inline bool stdout_is_terminal() { return isatty(1) && launcher_value(LAUNCHER_SIZES) < 0; }
// Before a message on stderr: what was printed so far goes first, and the line in work (logger.h)
// is cleared.
inline void clear_the_way() {
    if (stdout_is_terminal()) fputs("\r\033[K", stdout);
    fflush(stdout);
}

[[noreturn]] inline void exit_with_message(int status, const char* fmt, va_list args) {
    const std::string sentence = format_list(fmt, args);
    const bool several = launcher_value(LAUNCHER_SIZES) > 1;
    clear_the_way();
    if (status == 2) say_last_sentence(sentence);  // the same flags, the same mistake, on all ranks as a rule
    else if (several) fprintf(stderr, "error: rank %lld: %s\n", launcher_value(LAUNCHER_RANKS), sentence.c_str());
    else fprintf(stderr, "error: %s\n", sentence.c_str());
    exit(status);
}

// A flag that cannot be: exit status 2.
[[noreturn]] PRINTF_LIKE(1, 2) inline void usage_error(const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    exit_with_message(2, fmt, args);
}

// A file or device that failed: exit status 1.
[[noreturn]] PRINTF_LIKE(1, 2) inline void runtime_failure(const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    exit_with_message(1, fmt, args);
}

// Something odd, but the run goes on.
PRINTF_LIKE(1, 2) inline void warning(const char* fmt, ...) {
    if (launcher_value(LAUNCHER_SIZES) > 1 && launcher_value(LAUNCHER_RANKS) > 0) return;
    clear_the_way();
    va_list args;
    va_start(args, fmt);
    fputs("warning: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
}
