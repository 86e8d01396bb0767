// Which checkpoints of a folder are complete: finding the newest one, and removing old ones.
#pragma once
#include <map>
#include <memory>
#include <set>
#include "llmc/checkpoint/checkpoint_files.h"
#include "llmc/comm/comm.h"

// Reads a file up to its last `tail` bytes, for its checksum. False if that fails; file.problem
// says why.
inline bool read_to_tail(FileReader& file, int64_t tail, Progress* progress) {
    std::vector<char> buffer(1 << 20);
    while (file.good() && file.position + tail < file.size_bytes) {
        const int64_t bytes = std::min<int64_t>(buffer.size(), file.size_bytes - tail - file.position);
        file.try_read(buffer.data(), bytes, "what its checksum is of");
        if (progress) progress->add(bytes);
    }
    return file.good();
}

// Whether the numbers of a state file's header can be those of a run.
inline bool is_sane(const StateHeader& h) {
    const bool counts = h.position_windows >= 0 && h.loss_outlier.count >= 0 && h.loss_outlier.count <= h.step &&
                        h.norm_outlier.count >= 0 && h.norm_outlier.count <= h.step;
    const int64_t least = (int64_t)states_of(OPTIMIZERS[find_optimizer(h.optimizer)], false).size();
    const bool scaled = h.version != STATE_VERSION_FP16 || h.loss_scale.is_sane();
    const bool ranks = h.rank_states >= 0 && h.rank_states < 1 << NUM_RANK_STATES;
    const bool updates = h.loss_scale.skipped >= 0 && h.loss_scale.skipped <= h.step;
    return counts && scaled && ranks && updates && h.processes > h.rank && h.states >= least && h.states <= least + 1;
}

// What is wrong with a state file of a checkpoint; empty if nothing. Reads its header into h.
inline std::string state_problem(const std::string& path, int64_t step, int64_t rank, StateHeader& h,
                                 Progress* progress) {
    FileReader file(path, FileReader::TELL);
    if (!file.good()) return file.problem;
    uint64_t sum = 0, stored = 0;
    if (file.size_bytes < h.bytes() + (int64_t)sizeof(stored)) return path + " is cut short";
    if (!try_read_header(file, h)) return file.good() ? path + " is no state file of this version" : file.problem;
    if (!read_to_tail(file, sizeof(stored), progress)) return file.problem;
    sum = file.checksum.value();
    if (!file.try_read(&stored, sizeof(stored), "its checksum")) return file.problem;
    if (sum != stored || h.header_checksum != h.checksum()) return path + " is damaged: its checksum is wrong";
    const bool good = h.step == step && h.rank == rank && is_sane(h);
    return good ? "" : path + " is damaged: its header makes no sense";
}

// What is wrong with the checkpoint of this step; empty if nothing. Then `header` is that of rank 0
// and, if asked for, `model` the model file, still open.
inline std::string checkpoint_problem(const std::string& dir, int64_t step, StateHeader& header,
                                      std::unique_ptr<FileReader>* model = nullptr, Progress* progress = nullptr) {
    for (int64_t rank = 0; rank == 0 || rank < header.processes; rank++) {
        const std::string path = state_path(dir, step, rank);
        StateHeader h;
        const std::string problem = state_problem(path, step, rank, h, progress);
        if (!problem.empty()) return problem;
        if (rank == 0) header = h;
        const bool fits = h.model_checksum == header.model_checksum && h.processes == header.processes &&
                          h.states == header.states && h.rank_states == header.rank_states &&
                          strcmp(h.optimizer, header.optimizer) == 0;
        if (!fits) return path + " belongs to another checkpoint";
    }
    auto file = std::make_unique<FileReader>(model_path(dir, step), FileReader::TELL);
    if (!file->good() || !read_to_tail(*file, 0, progress)) return file->problem;
    if (file->checksum.value() != header.model_checksum) return file->path + " is damaged: its checksum is wrong";
    if (model) *model = std::move(file);
    return "";
}

// Names the newest state file of a folder in which no checkpoint was finished.
inline void warn_of_unfinished(const std::string& dir) {
    int64_t step = -1;
    for (const CheckpointFile& file : checkpoint_files(dir))
        if (file.kind == CheckpointFile::STATE && !file.temporary) step = std::max(step, file.step);
    if (step >= 0)
        warning("the checkpoint of step %d is passed over: it was not finished, %s is not there", step,
                done_path(dir, step));
}

// The step of the newest complete checkpoint, with its header and its model file, still open. Names
// those it passes over on stderr. -1 if no checkpoint in the folder was finished. If some were and
// none of them is complete, ends the program (exit 1): a new run in that folder would replace them.
inline int64_t newest_checkpoint(const std::string& dir, StateHeader& header,
                                 std::unique_ptr<FileReader>* model = nullptr, Logger* logger = nullptr) {
    Logger nobody;
    nobody.silent = true;
    const std::vector<int64_t> steps = finished_steps(dir);
    if (steps.empty()) return warn_of_unfinished(dir), -1;
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
        StateHeader found;
        const std::string name = format("checking step %d of %s", *step, dir);
        std::string problem;
        {
            Progress progress(logger ? *logger : nobody, name, checkpoint_bytes(dir, *step), "MB", 1000000);
            problem = checkpoint_problem(dir, *step, found, model, &progress);
        }
        if (problem.empty()) return header = found, *step;
        warning("the checkpoint of step %d is passed over: %s", *step, problem);
    }
    runtime_failure(
        "none of the %d checkpoints in %s can be used (steps %d to %d, each named above); nothing was "
        "changed, and another -o starts a new run",
        steps.size(), dir, steps.front(), steps.back());
}

// Verifies the checkpoint of one step, and returns that step; header and model as above. Exit 2 if
// there is none, 1 if it is damaged.
inline int64_t checkpoint_of_step(const std::string& dir, int64_t step, StateHeader& header,
                                  std::unique_ptr<FileReader>* model, Logger& logger) {
    const std::vector<int64_t> steps = finished_steps(dir);
    std::string accepted;
    for (int64_t s : steps) accepted += format("%s%d", accepted.empty() ? "" : ", ", s);
    if (std::find(steps.begin(), steps.end(), step) == steps.end())
        usage_error("--from-step %d: %s has no complete checkpoint of that step; accepted: %s", step, dir,
                    accepted.empty() ? "none, it holds no checkpoint" : accepted);
    const std::string name = format("checking step %d of %s", step, dir);
    Progress progress(logger, name, checkpoint_bytes(dir, step), "MB", 1000000);
    const std::string problem = checkpoint_problem(dir, step, header, model, &progress);
    if (!problem.empty()) runtime_failure("the checkpoint of step %d cannot be used: %s", step, problem);
    return step;
}

// The oldest of the `keep` newest complete checkpoints up to `step`; -1 if there are fewer. `whole`
// has the verdicts known so far, by step; the others are verified now, and added to it.
inline int64_t oldest_to_keep(const std::string& dir, int64_t step, int64_t keep, std::map<int64_t, bool>& whole) {
    const std::vector<int64_t> steps = finished_steps(dir);
    for (auto s = steps.rbegin(); s != steps.rend(); ++s) {
        if (*s > step) continue;
        if (!whole.count(*s)) {
            StateHeader header;
            const std::string problem = checkpoint_problem(dir, *s, header);
            whole[*s] = problem.empty();
            if (!problem.empty()) warning("the checkpoint of step %d does not count for -nk: %s", *s, problem);
        }
        if (whole[*s] && --keep == 0) return *s;
    }
    return -1;
}

// Removes what is left of checkpoints that were not finished, or whose removal was cut off. To be
// called while none is being written.
inline void remove_unfinished(const std::string& dir) {
    const std::vector<int64_t> finished = finished_steps(dir);
    std::set<int64_t> unfinished;
    for (const CheckpointFile& file : checkpoint_files(dir))
        if (file.kind == CheckpointFile::STATE && !file.temporary &&
            !std::binary_search(finished.begin(), finished.end(), file.step) && is_of_a_run(dir, file))
            unfinished.insert(file.step);
    for (int64_t step : unfinished) remove_checkpoint(dir, step);
}

// Keeps the `keep` newest complete checkpoints up to `step` (0: all) and those at multiples of
// `major` (0: none); removes what is older.
inline void prune_checkpoints(const std::string& dir, int64_t step, int64_t keep, int64_t major,
                              std::map<int64_t, bool>& whole) {
    if (comm.rank > 0 || keep == 0) return;
    const int64_t oldest_kept = oldest_to_keep(dir, step, keep, whole);
    std::set<int64_t> old;
    for (const CheckpointFile& file : checkpoint_files(dir))
        if (file.kind == CheckpointFile::DONE && file.step < oldest_kept && (major == 0 || file.step % major != 0))
            old.insert(file.step);
    for (int64_t s : old) remove_checkpoint(dir, s);
}
