// --overwrite 1 in a folder that holds a run: until the new run has saved a checkpoint, the earlier
// one stays whole in a folder inside, and -y 1 brings it back. No file is copied; each is renamed.
//
//     earlier_run         the earlier run; it is removed once the new one has saved
//     earlier_run.tmp     it is being moved there or back, and goes back if that was cut off
//     .../until_saved     an empty file in either, which shows that no user has made the folder
#pragma once
#include "llmc/checkpoint/checkpoint_files.h"
#include "llmc/options/run_json.h"

// Where --overwrite 1 keeps the run that was in a folder, until the new one has saved.
inline std::string earlier_run_path(const std::string& dir) { return dir + "/earlier_run"; }

// The folder of the run that -y 1 goes on with: the out dir, or the earlier run in it, if that is
// whole and the new one has saved nothing.
inline std::string folder_to_resume(const std::string& dir) {
    const std::string earlier = earlier_run_path(dir), moving = earlier + ".tmp";
    if (file_exists(run_json_path(moving))) return moving;
    return finished_steps(dir).empty() && !finished_steps(earlier).empty() ? earlier : dir;
}

// The names of the files of the run in a folder, run.json last: it is what -y 1 reads first.
inline std::vector<std::string> files_of_run(const std::string& dir, bool keeps_best) {
    std::vector<std::string> names;
    for (const CheckpointFile& file : checkpoint_files(dir))
        if (!file.temporary && is_of_a_run(dir, file)) names.push_back(file.path.substr(dir.size() + 1));
    for (const std::string& name : list_folder(dir))
        if (((keeps_best && name.rfind("model_best", 0) == 0) || name.rfind("model_ema_", 0) == 0) &&
            ends_with(name, ".bin"))
            names.push_back(name);
    for (const char* name : {"main.log", "metrics.csv", "tensors.csv", "evals.jsonl", "shards.txt", "run.json"})
        if (file_exists(dir + "/" + name)) names.push_back(name);
    return names;
}

inline void rename_folder(const std::string& from, const std::string& to) {
    rename_file(from, to);
    flush_folder(folder_of(to));
}

// The file that marks a folder as one of this header.
inline std::string mark_path(const std::string& folder) { return folder + "/until_saved"; }

// Moves the run in a folder out of the way of a new one.
inline void set_run_aside(const std::string& dir, bool keeps_best) {
    const std::string earlier = earlier_run_path(dir), moving = earlier + ".tmp";
    remove_file(mark_path(moving) + ".tmp");  // of a program that was killed before it moved anything
    rmdir(moving.c_str());
    for (const std::string& folder : {earlier, moving})
        if (name_exists(folder))
            usage_error(
                "%s is in the way: --overwrite 1 keeps the earlier run there until this one has saved; -o %s "
                "is accepted without it",
                folder, dir);
    make_folder(moving);
    FileWriter(mark_path(moving)).commit();
    for (const std::string& name : files_of_run(dir, keeps_best)) rename_file(dir + "/" + name, moving + "/" + name);
    flush_folder(moving);
    rename_folder(moving, earlier);
}

// Removes a folder that is one of this header, but for what somebody else has put there.
inline void remove_marked_folder(const std::string& folder) {
    for (const std::string& name : files_of_run(folder, true)) remove_file(folder + "/" + name);
    remove_file(mark_path(folder));
    rmdir(folder.c_str());
}
inline void remove_earlier_run(const std::string& dir) {
    const std::string earlier = earlier_run_path(dir);
    if (file_exists(mark_path(earlier))) remove_marked_folder(earlier);
}

// At the start of a run in a folder: removes the earlier run if its successor has saved, and else
// brings it back; true if it did. keeps_best: whether the successor keeps its best model.
inline bool settle_earlier_run(const std::string& dir, bool keeps_best) {
    const std::string earlier = earlier_run_path(dir), moving = earlier + ".tmp";
    if (file_exists(mark_path(earlier))) {
        if (!finished_steps(dir).empty()) return remove_earlier_run(dir), false;
        for (const std::string& name : files_of_run(dir, keeps_best)) remove_file(dir + "/" + name);
        rename_folder(earlier, moving);
    }
    if (!file_exists(mark_path(moving))) return false;
    for (const std::string& name : files_of_run(moving, true)) rename_file(moving + "/" + name, dir + "/" + name);
    flush_folder(dir);
    remove_marked_folder(moving);
    return true;
}
