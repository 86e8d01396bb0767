// The text files of the out dir to which a run appends lines. Each line belongs to a step, counted
// from 0:
//
//     main.log       what llm.c's log viewers read: `s:STEP tel:` validation loss, `trl:` training loss,
//                    `eval:` HellaSwag
//     metrics.csv    one line per step (metrics.h)
//     tensors.csv    with --log-tensors: lines per step and tensor (tensor_log.h)
//     evals.jsonl    one JSON object per line:
//                    {"step": 20, "val_loss": 3.28, "bits_per_byte": 1.09}        null where there is no such number
//                    ..., "average_loss": 3.21}                                   with --ema
//                    {"step": 20, "hellaswag": 0.3, "correct": 3, "questions": 10}
//                    {"step": 20, "sample": " upon a time", "prompt": "Once"}     as it was printed
//
// A resumed run keeps the lines of the steps that its checkpoint includes, and writes the others
// again. So after any kill the files are those of a run that nobody killed, but for what was
// measured (times, memory, the GPU's state).
#pragma once
#include <cmath>
#include <string>
#include <vector>
#include "llmc/base/file.h"

struct RunFile {
    std::string path{};         // empty: nothing is written
    std::string before_step{};  // what comes before the number of the step in each line
    std::string header{};       // the first line, with its newline; empty: none
    std::string unwritten{};    // lines that could not be written yet
    bool warned = false;        // about them

    // Appends one line. A failure does not end the run: the line is kept for the next time, with a
    // warning, and finish() ends the run with an error if it could never be written.
    void record(const std::string& text) {
        if (path.empty()) return;
        unwritten += text + "\n";
        write_lines();
    }
    void write_lines() {
        errno = ENOSPC;  // what a write that was cut short means
        const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666);
        const bool has_header = unwritten.compare(0, header.size(), header) == 0;
        if (fd >= 0 && lseek(fd, 0, SEEK_END) == 0 && !has_header) unwritten.insert(0, header);  // it was removed
        const ssize_t written = fd >= 0 ? write(fd, unwritten.data(), unwritten.size()) : -1;
        const int reason = errno;
        if (fd >= 0) close(fd);
        unwritten.erase(0, std::max<ssize_t>(0, written));
        if (unwritten.empty() || warned) return;
        warned = true;
        warning("cannot write %s: %s; training goes on, and its lines are kept for later", path, strerror(reason));
    }
    // The step of a line; -1 if it has none, such as a header.
    int64_t step_of(const std::string& line) const {
        const size_t at = before_step.size();
        const bool has_step = line.compare(0, at, before_step) == 0 && at < line.size() && isdigit(line[at]);
        return has_step ? atoll(line.c_str() + at) : -1;
    }
    // The complete lines, each with its newline; a header is one of them.
    std::vector<std::string> lines() const {
        std::vector<std::string> lines;
        FileReader file(path, FileReader::TELL);
        if (file.missing) return lines;
        file.expect_good();
        std::string all(file.size_bytes, '\0');
        file.read(all.data(), all.size(), "its lines");
        for (size_t at = 0, end; (end = all.find('\n', at)) != all.npos; at = end + 1)
            lines.push_back(all.substr(at, end + 1 - at));
        return lines;
    }
    // Keeps the lines of steps before `step`, which the checkpoint to resume from includes, and
    // drops the rest. Returns the lines kept, without the header. A file with another header, of
    // another version, is kept under the name *.old.
    std::vector<std::string> rewind(int64_t step) {
        if (path.empty()) return {};
        std::vector<std::string> all = lines(), kept;
        if (!all.empty() && !header.empty() && all[0] != header && step > 0) {
            warning("%s has other columns, of another version: it is kept as %s", path, set_aside(path));
            all.clear();
        }
        for (const std::string& line : all)
            if (step_of(line) >= 0 && step_of(line) < step) kept.push_back(line);
        FileWriter file(path);
        file.write(header.data(), header.size());
        for (const std::string& line : kept) file.write(line.data(), line.size());
        file.commit();
        return kept;
    }
};

// The lowest validation loss so far.
struct BestLoss {
    double loss = INFINITY;
    int64_t step = -1;
    int64_t validations_since = 0;

    // Whether the loss of a step is lower than all before it. NaN is not.
    bool add(double its_loss, int64_t its_step) {
        validations_since++;
        if (its_loss < loss) loss = its_loss, step = its_step, validations_since = 0;
        return validations_since == 0;
    }
};

struct RunFiles {
    RunFile log{"", "s:"}, metrics{}, tensors{}, evals{"", "{\"step\": "};

    // To be called at the end of a run. Exit 1 if lines could not be written.
    void finish() {
        std::string lost;
        for (RunFile* file : {&log, &metrics, &tensors, &evals}) {
            if (!file->unwritten.empty()) file->write_lines();
            if (file->unwritten.empty()) continue;
            lost += format("%sthe last %d bytes of %s", lost.empty() ? "" : ", ", file->unwritten.size(), file->path);
        }
        if (!lost.empty()) runtime_failure("%s could not be written; training and checkpoints are whole", lost);
    }
};
