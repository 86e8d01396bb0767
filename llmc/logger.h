// What a run says. stdout: one line a step; on a terminal a last line, drawn over itself, with the time gone and the time left. In the
// out dir main.log, in the form that llm.c's log viewers read: `s:STEP tel:` validation loss, `trl:` training loss, `eval:` HellaSwag.
#pragma once
#include <cmath>
#include <string>
#include "llmc/clock.h"
#include "llmc/file.h"

// printf writes a NaN with whatever sign it carries; these always say nan.
inline std::string loss_text(const char* fmt, double value) {
    char text[64];
    snprintf(text, sizeof(text), fmt, std::isnan(value) ? std::fabs(NAN) : value);
    return text;
}

inline std::string duration_text(double seconds) {
    const long long s = (long long)(seconds + 0.5);
    return s >= 3600 ? format("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60) : format("%lld:%02lld", s / 60, s % 60);
}

struct Logger {
    std::string path;                    // of main.log, empty without an out dir
    bool terminal = false, transient = false;
    bool silent = false;                 // all ranks but the first

    void clear_transient() {
        if (transient) printf("\r\033[K");
        transient = false;
    }
    // The line in work, on a terminal only: replaced by whatever is printed next.
    void progress(const std::string& text) {
        if (!terminal) return;
        clear_transient();
        printf("%s", text.c_str());
        fflush(stdout);
        transient = true;
    }
    PRINTF_LIKE(2, 3) void line(const char* fmt, ...) {
        if (silent) return;
        clear_transient();
        va_list args;
        va_start(args, fmt);
        vprintf(fmt, args);
        va_end(args);
        printf("\n");
        fflush(stdout);
    }
    // Appends one line to main.log.
    void record(const std::string& text) {
        if (path.empty() || silent) return;
        const std::string whole = text + "\n";
        int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
        bool good = fd >= 0 && write(fd, whole.data(), whole.size()) == (ssize_t)whole.size();
        const int reason = errno;
        if (fd >= 0) close(fd);
        if (!good) runtime_failure("cannot write %s: %s; checkpoints already there are untouched", path.c_str(), strerror(reason));
    }
    // Keeps the lines of steps before `step`, those that the checkpoint resumed from has seen, and drops the rest.
    void rewind(int64_t step) {
        if (path.empty() || silent) return;
        std::string kept;
        if (file_exists(path)) {
            FileReader file(path);
            std::string all(file.size_bytes, '\0');
            file.read(all.data(), all.size(), "the log");
            for (size_t at = 0, end; at < all.size(); at = end + 1) {
                end = all.find('\n', at);
                if (end == all.npos) break;  // a line that was never finished
                if (all.compare(at, 2, "s:") == 0 && atoll(all.c_str() + at + 2) < step) kept += all.substr(at, end + 1 - at);
            }
        }
        FileWriter file(path);
        file.write(kept.data(), kept.size());
        file.commit();
    }
};
