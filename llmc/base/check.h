// How the program reports errors. A mistake in a flag ends it with exit status 2, a broken file or
// device with 1; both with one sentence on stderr that says what is wrong, where, and what would be
// accepted.
#pragma once
#include <unistd.h>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include "llmc/base/launcher.h"

#define PRINTF_LIKE(fmt_arg, first_arg) __attribute__((format(printf, fmt_arg, first_arg)))

// What printf would print, as a std::string.
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

// "1 file", "2 files".
inline std::string count_text(int64_t n, const char* noun) {
    return format("%lld %s%s", (long long)n, noun, n == 1 ? "" : "s");
}

// A message in one line, although names and values in it may hold any bytes: with ? for control
// characters, which a terminal would obey.
inline std::string in_one_line(std::string message) {
    for (char& c : message)
        if ((unsigned char)c < ' ' || c == 0x7f) c = '?';
    return message;
}

// True if stdout is a terminal. Never under a launcher: mpirun gives its children a terminal even
// if its own output goes to a file.
inline bool stdout_is_terminal() { return isatty(1) && launcher_value(LAUNCHER_SIZES) < 0; }
// Prepares for a message on stderr: clears the progress line of a terminal (logger.h) and flushes
// stdout, so that output appears in the order in which it was written.
inline void clear_the_way() {
    if (stdout_is_terminal()) fputs("\r\033[K", stdout);
    fflush(stdout);
}

// Prints on stderr what went wrong, with the rank where there are several.
inline void print_error(const std::string& text) {
    const std::string sentence = in_one_line(text);
    const bool several = launcher_value(LAUNCHER_SIZES) > 1;
    clear_the_way();
    if (several) fprintf(stderr, "error: rank %lld: %s\n", launcher_value(LAUNCHER_RANKS), sentence.c_str());
    else fprintf(stderr, "error: %s\n", sentence.c_str());
}

// Ends a program that fails, if it is set: with collectives of GPUs under way, exit() might not
// return (cuda/comm.cuh).
inline void (*end_after_failure)(int status) = nullptr;

[[noreturn]] inline void exit_with_message(int status, const char* fmt, va_list args) {
    print_error(format_list(fmt, args));
    if (end_after_failure) end_after_failure(status);
    exit(status);
}

// Ends the program because of a mistake in a flag: exit status 2.
[[noreturn]] PRINTF_LIKE(1, 2) inline void usage_error(const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    exit_with_message(2, fmt, args);
}

// Ends the program because of a broken file or device: exit status 1.
[[noreturn]] PRINTF_LIKE(1, 2) inline void runtime_failure(const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    exit_with_message(1, fmt, args);
}

// A message on stderr about something unexpected, after which the run goes on. Rank 0 only.
PRINTF_LIKE(1, 2) inline void warning(const char* fmt, ...) {
    if (launcher_value(LAUNCHER_SIZES) > 1 && launcher_value(LAUNCHER_RANKS) > 0) return;
    va_list args;
    va_start(args, fmt);
    clear_the_way();
    fprintf(stderr, "warning: %s\n", in_one_line(format_list(fmt, args)).c_str());
    va_end(args);
}
