// What becomes of a run that loses a process: the others end, and the lowest rank of them writes a
// checkpoint first, if it can. At ZeRO stage 0 on a CPU every process holds the whole model and the
// optimizer's whole state, which are those of the last complete step unless an update is under way.
// At the other stages the lost rank alone had its slices; on a GPU a collective that never ends
// stands before all that the host would read. Then the newest checkpoint on the disk counts.
//
// scripts/launch.sh --elastic goes on from there with the processes that are left.
#pragma once
#include "llmc/comm/tcp.h"
#include "llmc/run/out_dir.h"

// The lowest rank that is still there. Only processes that have met by TCP know; else -1.
inline int64_t lowest_rank_left(int64_t lost) {
    for (int64_t r = 0; r < (int64_t)tcp.peers.size(); r++)
        if (r == comm.rank || (r != lost && !has_hung_up(tcp.peers[r]))) return r;
    return -1;
}

// Saves what can be saved; returns what became of it, to be said after why the run ends.
inline std::string save_after_loss(Run& run, int64_t lost) {
    const std::string& dir = run.options.out_dir;
    const StateHeader& state = run.step.after ? *run.step.after : run.state;
    const int64_t step = state.step, writer = lowest_rank_left(lost);
    const std::string saved = format("; step %d is saved in %s", step, dir);
    if (run.saved_step == step || name_exists(done_path(dir, step))) return saved;
    const bool in_slices = run.model.slice.parts > 1;
    const bool differs = run.model.apart || kept_rank_states(run.model);  // what a rank has that the others have not
    if (in_slices || differs || run.model.sizes.gpu || run.model.in_update || writer < 0)
        return format("; the newest checkpoint in %s counts%s", dir,
                      in_slices || differs ? format(", since part of the state was rank %d's alone", lost) : "");
    if (writer != comm.rank) return format("; rank %d saves step %d", writer, step);
    make_way(dir, step);
    save_checkpoint_alone(dir, state, run.model);
    return saved;
}
