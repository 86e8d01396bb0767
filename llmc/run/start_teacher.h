// --teacher, before a run starts: which model it names, whether the run's model can learn from it,
// its weights.
#pragma once
#include "llmc/comm/agree.h"
#include "llmc/model/teacher.h"
#include "llmc/plan/plan.h"
#include "llmc/run/run.h"
#include "llmc/run/start.h"

// Opens the teacher's file. Exit 2 if its model and the run's cannot work together.
inline void settle_teacher(Run& run, const GPT2Config& student) {
    Options& o = run.options;
    const bool trains = o.max_steps != 0;
    const bool share = o.distill != Options().distill;  // what run.json repeats is no wish
    if (o.teacher.empty() && (share || o.distill_temperature != Options().distill_temperature))
        usage_error("%s has no effect without --teacher", share ? "--distill" : "--distill-temperature");
    if (!trains && !o.teacher.empty())
        usage_error("--teacher %s is for training, and -x 0 does not train; without it -x 0 is accepted", o.teacher);
    if (o.teacher.empty() || !trains || o.distill == 0) return;
    if (folder_exists(o.teacher)) o.teacher = newest_model("--teacher", o.teacher);
    run.teacher_file = std::make_unique<FileReader>(o.teacher);
    if (is_adapter_file(*run.teacher_file))
        usage_error("--teacher %s holds adapters alone; the model that dev/data/adapter.py merges is accepted",
                    o.teacher);
    run.teacher_file->rewind();
    GPT2Config c;
    read_model_header(*run.teacher_file, c);
    if (c.V != student.V)
        usage_error("--teacher %s has a vocabulary of %d tokens, and the model one of %d; one of %d is accepted",
                    o.teacher, c.V, student.V, student.V);
    if (c.maxT < o.seq_len)
        usage_error("--teacher %s has a context of %d tokens, and -t is %d; -t up to %d is accepted", o.teacher, c.maxT,
                    o.seq_len, c.maxT);
    run.model.teacher = new_teacher(c);
    run.model.teacher_share = (float)o.distill, run.model.teacher_temperature = (float)o.distill_temperature;
}

// Reads its weights. Exit 1 unless they are the same in all processes.
inline void load_teacher(Run& run) {
    if (!run.model.teacher) return;
    FileReader& file = *run.teacher_file;
    Progress progress(run.logger, "loading " + file.path, file.size_bytes, "MB", 1000000);
    load_model(*run.model.teacher, file, &progress);
    comm_check_same(std::to_string(file.checksum.value()), "teacher");
    run.teacher_file.reset();
}
