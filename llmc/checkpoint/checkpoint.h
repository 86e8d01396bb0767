// Saving a run and loading it again, so that it goes on as if nothing had happened.
// checkpoint_files.h describes what is on the disk, checkpoint_find.h finds what can be loaded.
#pragma once
#include "llmc/checkpoint/adapter_file.h"
#include "llmc/checkpoint/checkpoint_find.h"
#include "llmc/model/gathered.h"
#include "llmc/model/rank_memory.h"

// Refuses to save values that are not finite: a run could not be resumed from them.
inline void expect_finite(FileWriter& file, const float* values, int64_t elems, int state, int64_t bucket,
                          int64_t layers) {
    if (all_finite(values, elems)) return;
    const std::string where = bucket < layers ? format("layer %d", bucket) : "what is outside the layers";
    file.refuse(format("%s of %s: values that are not finite", STATE_NAMES[state], where));
}

// Writes this rank's state file of a checkpoint; returns its checksum.
inline uint64_t write_state(const std::string& dir, const StateHeader& header, GPT2& model, Progress* progress) {
    const ParameterLayout& layout = model.layout;
    FileWriter file(state_path(dir, header.step, header.rank));
    const std::vector<OptimizerState> states = kept_states(model);
    file.write(&header, header.bytes());
    for (int64_t b = 0; b < layout.buckets(); b++) {
        for (OptimizerState state : states)
            for_each_state_piece(state_layout(model, state).slice_elems(b), [&](int64_t first, int64_t n) {
                const float* values = state_piece(model, state, b, first, n);
                expect_finite(file, values, n, state, b, layout.config.L);
                file.write(values, n * 4);
                if (progress) progress->add(n * 4);
            });
        leave_states(model, b);
    }
    for_each_rank_piece(layout, header.rank_states, [&](RankState state, const RankPiece& piece) {
        const float* values = rank_values_at(model, state, piece.at, piece.elems);
        if (!all_finite(values, piece.elems)) file.refuse(format("%s: values that are not finite", RANK_STATES[state]));
        file.write(values, piece.elems * 4);
        if (progress) progress->add(piece.elems * 4);
    });
    const uint64_t sum = file.checksum.value();
    file.write(&sum, sizeof(sum));
    file.commit();
    return sum;
}

// Rank 0: ends the program (exit 1) unless it finds the state file that another rank has written,
// with the same checksum.
inline void expect_state(const std::string& path, const StateHeader& header, int64_t rank, uint64_t sum) {
    FileReader file(path, FileReader::TELL);
    StateHeader h;
    uint64_t stored = 0;
    bool good = file.good() && file.size_bytes > header.bytes() && try_read_header(file, h);
    good = good && h.step == header.step && h.rank == rank;
    if (good) file.seek(file.size_bytes - sizeof(stored));
    good = good && file.try_read(&stored, sizeof(stored), "its checksum") && stored == sum;
    if (!file.missing) file.expect_good();
    if (!good)
        runtime_failure(
            "rank %d has written its part of the checkpoint of step %d, but rank 0 finds no such %s: "
            "-o must be one folder, which all processes share",
            rank, header.step, path);
}

// Makes room for the checkpoint of a step: removes temporary files that an earlier program left,
// and the DONE file of this step, if there is one.
inline void clear_checkpoint(const std::string& dir, int64_t step) {
    for (const CheckpointFile& file : checkpoint_files(dir))
        if (file.temporary) remove_file(file.path);
    const std::string done = done_path(dir, step);
    if (!remove_file(done))
        runtime_failure("cannot remove %s, to write that checkpoint again: %s", done, strerror(errno));
    flush_folder(dir);
}

// Writes the model's weights, or of a model with adapters these alone; returns their checksum.
// Where every process keeps a slice of them, the others call give_weights() meanwhile.
inline uint64_t write_weights(FileWriter& file, GPT2& model, Progress* progress = nullptr) {
    auto get = [&](int tensor, int64_t layer, int64_t first, int64_t elems) {
        return gathered_tensor_data(model, tensor, layer, first, elems);
    };
    const GPT2Config& c = model.layout.config;
    if (c.lora.rank > 0) return write_adapters(file, c, model_version(model.format), get, progress);
    return write_model(file, c, model_version(model.format), get, progress);
}
inline void give_weights(GPT2& model) {
    if (!model.weight_places.sharded) return;
    const auto give = [&](int tensor, int64_t layer, int64_t first, int64_t elems) {
        gathered_tensor_data(model, tensor, layer, first, elems);
    };
    const bool adapters = model.layout.config.lora.rank > 0;
    for_each_model_piece(model.layout.config, give, adapters ? NUM_TENSORS : 0, adapters ? ALL_TENSORS : NUM_TENSORS);
}

// Fills in what the states of a checkpoint say of this rank.
inline void complete_header(StateHeader& header, const GPT2& model) {
    header.processes = comm.shards.processes, header.rank = comm.shards.rank;
    header.rank_states = kept_rank_states(model), header.trained = trained_identity(model.layout.config);
    header.set_version(model.optimizer, model.sizes.fp16), header.states = (int64_t)kept_states(model).size();
    header.header_checksum = header.checksum();
}
// The end of a save: all states are there.
inline void publish_checkpoint(const std::string& dir, int64_t step, FileWriter& model_file) {
    model_file.publish();
    unfinished_file.clear();
    flush_folder(dir);
    FileWriter done(done_path(dir, step));
    done.commit();
}

// Writes the checkpoint of header.step from the model; called by all ranks. Rank 0 writes the
// model, each rank its state, replicas once, and rank 0 DONE, once it has seen all states. A
// failure ends the program (exit 1), and leaves the checkpoint incomplete. The model gets its name
// after the states have theirs: a save that is cut off leaves no model without a state, which
// prune_checkpoints() would take for a user's own.
inline void save_checkpoint(const std::string& dir, StateHeader header, GPT2& model, Progress* progress = nullptr) {
    std::unique_ptr<FileWriter> model_file;
    if (comm.rank == 0) {
        clear_checkpoint(dir, header.step);
        model_file = std::make_unique<FileWriter>(model_path(dir, header.step));
        header.model_checksum = write_weights(*model_file, model, progress);
        model_file->flush();
        unfinished_file = model_file->temporary;
    } else give_weights(model);
    header.model_checksum = comm_gather(header.model_checksum, "writing the model")[0];
    complete_header(header, model);
    const bool writes = comm.replicas.rank == 0;  // the others have the same slices
    const uint64_t sum = writes ? write_state(dir, header, model, progress) : 0;
    const std::vector<uint64_t> sums = comm_gather(sum, "writing the state");
    if (comm.rank > 0) return;
    for (int64_t rank = 0; rank < comm.shards.processes; rank++)
        expect_state(state_path(dir, header.step, rank), header, rank, sums[rank]);
    publish_checkpoint(dir, header.step, *model_file);
}

// Writes such a checkpoint by one process alone, after another is lost: where every process holds
// everything (ZeRO stage 0), it has the states of all ranks.
inline void save_checkpoint_alone(const std::string& dir, StateHeader header, GPT2& model) {
    clear_checkpoint(dir, header.step);
    FileWriter model_file(model_path(dir, header.step));
    header.model_checksum = write_weights(model_file, model);
    model_file.flush();
    int64_t& rank = comm.shards.rank;
    const int64_t own_rank = rank;
    for (rank = 0; rank < comm.shards.processes; rank++) {
        complete_header(header, model);
        write_state(dir, header, model, nullptr);
    }
    rank = own_rank;
    publish_checkpoint(dir, header.step, model_file);
}

// Loads the slices of its states that a rank of the saved run wrote. verified: the
// header of the checkpoint, as newest_checkpoint() found it.
inline void load_state(const std::string& path, const StateHeader& verified, int64_t rank, GPT2& model,
                       Progress* progress) {
    FileReader file(path);
    StateHeader h;
    auto changed = [&] { runtime_failure("%s has changed since it was verified", path); };
    if (!try_read_header(file, h)) changed();
    const bool same = h.header_checksum == h.checksum() && h.step == verified.step && h.rank == rank &&
                      h.processes == verified.processes && h.states == verified.states &&
                      h.rank_states == verified.rank_states && find_optimizer(h.optimizer) == model.optimizer &&
                      h.model_checksum == verified.model_checksum;
    if (!same) changed();
    const ParameterLayout saved = parameter_layout(model.layout.config, h.processes);
    const OptimizerInfo& optimizer = OPTIMIZERS[model.optimizer];
    file.expect_size(state_file_bytes(saved, h, model.optimizer, has_master(h)));
    std::vector<float> values;
    for (int64_t b = 0; b < saved.buckets(); b++) {
        for (OptimizerState state : states_of(optimizer, has_master(h))) {
            const int64_t elems = state_layout(saved, optimizer, state).slice_elems(b);
            for_each_state_piece(elems, [&](int64_t first, int64_t n) {
                values.resize(n);
                file.read(values.data(), n * 4, "the optimizer's state");
                if (!all_finite(values.data(), n))
                    runtime_failure("%s is damaged: it has values that are not finite", path);
                set_state(model, state, b, rank * elems + first, n, values.data());
                if (progress) progress->add(n * 4);
            });
        }
        leave_states(model, b);
    }
    for_each_rank_piece(saved, h.rank_states, [&](RankState state, const RankPiece& piece) {
        values.resize(piece.elems);
        file.read(values.data(), piece.elems * 4, "what the rank keeps");
        if (!all_finite(values.data(), piece.elems))
            runtime_failure("%s is damaged: it has values that are not finite", path);
        take_rank_piece(model, state, rank, rank_piece_begin(saved, state, piece, rank), piece, values.data());
        if (progress) progress->add(piece.elems * 4);
    });
    const uint64_t sum = file.checksum.value();
    uint64_t stored = 0;
    file.read(&stored, sizeof(stored), "its checksum");
    if (sum != stored) changed();
}

// Loads weights, or adapters, and optimizer state of the checkpoint that newest_checkpoint() found.
// Any number of processes may have written it.
inline void load_checkpoint(const std::string& dir, const StateHeader& verified, FileReader& model_file, GPT2& model,
                            Progress* progress = nullptr) {
    if (model.layout.config.lora.rank > 0) load_adapters(model, model_file, progress);
    else load_model(model, model_file, progress);
    if (model_file.checksum.value() != verified.model_checksum)
        runtime_failure("%s has changed since it was verified", model_file.path);
    for (int64_t rank = 0; rank < verified.processes; rank++)
        load_state(state_path(dir, verified.step, rank), verified, rank, model, progress);
    warn_of_dropped(model, verified.rank_states);
}
