// How the program reports errors. A mistake in a flag ends it with exit status 2, a broken file or
// device with 1; both with one sentence on stderr that says what is wrong, where, and what would be
// accepted.
#pragma once
#include <unistd.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include "llmc/base/format.h"
#include "llmc/base/launcher.h"

// "1 file", "2 files".
inline std::string count_text(int64_t n, const char* noun) { return format("%d %s%s", n, noun, n == 1 ? "" : "s"); }

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

// A file that is not finished, and is removed where the program ends with a message.
inline std::string unfinished_file;

[[noreturn]] inline void exit_with_message(int status, const std::string& text) {
    print_error(text);
    if (!unfinished_file.empty()) unlink(unfinished_file.c_str());
    if (end_after_failure) end_after_failure(status);
    exit(status);
}

// Ends the program because of a mistake in a flag: exit status 2.
template <class... T>
[[noreturn]] inline void usage_error(const char* fmt, const T&... values) {
    exit_with_message(2, format(fmt, values...));
}

// Ends the program because of a broken file or device: exit status 1.
template <class... T>
[[noreturn]] inline void runtime_failure(const char* fmt, const T&... values) {
    exit_with_message(1, format(fmt, values...));
}

// A message on stderr about something unexpected, after which the run goes on. Rank 0 only.
inline void print_warning(const std::string& text) {
    if (launcher_value(LAUNCHER_SIZES) > 1 && launcher_value(LAUNCHER_RANKS) > 0) return;
    clear_the_way();
    fprintf(stderr, "warning: %s\n", in_one_line(text).c_str());
}
template <class... T>
inline void warning(const char* fmt, const T&... values) {
    print_warning(format(fmt, values...));
}
