// ----- task
// A file is complete or absent. save() gives the file `name` new contents. Whenever the power
// fails, before, between or within the calls below, the name must stand for a whole file: the old
// one or the new one. And once save() has returned, it must be the new one, whatever happens then.
//
//     disk.write(name, bytes)      creates the file, or empties it, and writes the bytes: to the system's memory
//     disk.flush(name)             the file's bytes are on the disk afterwards (fsync)
//     disk.rename(from, to)        the file gets another name, and replaces what had that name: in the system's memory
//     disk.remove(name)            likewise
//     disk.flush_names()           the names are on the disk afterwards (fsync of the folder)
//
// A power failure loses what is in the system's memory, or a part of it. What has been flushed
// stays.
void save(Disk& disk, const std::string& name, const std::string& bytes) {
    // your code
}

// ----- solution
void save(Disk& disk, const std::string& name, const std::string& bytes) {
    disk.write(name + ".tmp", bytes);
    disk.flush(name + ".tmp");
    disk.rename(name + ".tmp", name);
    disk.flush_names();
}

// ----- mistakes
//     in-place: disk.write(name + ".tmp", bytes) ==> disk.write(name, bytes) ;; disk.flush(name + ".tmp") ==>
//         disk.flush(name) ;; disk.rename(name + ".tmp", name); ==> ;
//     bytes: disk.flush(name + ".tmp"); ==> ;
//     bytes: disk.flush(name + ".tmp"); ==> ;; disk.flush_names(); ==> disk.flush(name); disk.flush_names();
//     names: disk.flush_names(); ==> ;
//     removed: disk.rename(name + ".tmp", name); ==> disk.remove(name); disk.flush_names(); disk.rename(name + ".tmp",
//         name);
//     not-renamed: disk.rename(name + ".tmp", name); ==> ;

// ----- judge
#include "dev/course/exercises/disk.h"
void judge(Judge& j, decltype(task::save)* save) {
    j.hints = {{"in-place",
                "the file is written under its own name: while that goes on, it is neither old nor new. "
                "Write another name, and rename."},
               {"bytes", "the name is on the disk before the bytes are: flush the file first, then rename it."},
               {"names", "save() returns while the new name may still be lost: flush the names last."},
               {"removed", "between remove and rename there is no file of this name; rename replaces the old one."},
               {"not-renamed", "the new contents are not under the name that was asked for."}};
    for (const bool replaces : {true, false}) {
        const std::string name = "model", old_bytes = "the old model", new_bytes = "a better, new model";
        j.sizes("%s", replaces ? "a file is replaced" : "a new file");
        const auto run = [&](int64_t fails_at, Disk& disk) {  // whether save() returns
            if (replaces) disk.write(name, old_bytes), disk.flush(name), disk.flush_names();
            disk.written.clear(), disk.moments = 0, disk.fails_at = fails_at;
            try {
                save(disk, name, new_bytes);
                return true;
            } catch (const Disk::PowerFailure&) { return false; }
        };
        std::string key, text;
        int64_t moments = 0;
        for (int64_t fails_at = 0; fails_at <= moments && key.empty(); fails_at++) {
            Disk disk;
            const bool returned = run(fails_at, disk);
            moments = disk.moments;
            for (const std::optional<std::string>& left : disk.left(name)) {
                const bool is_old = replaces ? left == old_bytes : !left;
                if (left == new_bytes || (is_old && !returned)) continue;
                const bool seen = disk.names.count(name) && disk.names[name]->now == new_bytes;
                if (is_old) key = seen ? "names" : "not-renamed";
                else if (!left) key = "removed";
                else key = disk.written.count(name) ? "in-place" : "bytes";
                const std::string when = returned ? "save()" : std::to_string((fails_at + 1) / 2) + " calls";
                text = "when the power fails after " + when + ", the name stands for " +
                       (left ? "\"" + *left + "\"" : "no file");
                break;
            }
        }
        if (moments == 0) j.check({{"calls", {1}, begins(1)}}, [](const Key&) -> Arrays { return {{0}}; });
        else if (key.empty()) printf("right\n");
        else j.expect(false, key, "%s", text.c_str());
    }
}
