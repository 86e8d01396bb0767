// A disk for the exercise on saving: what a program sees, and what is left after a power failure at
// any moment.
//
// write() and rename() are in the system's memory at first. At a power failure an unflushed file
// has its bytes, a part of them, or none; of the names that were given or removed since
// flush_names() the first few have reached the disk: all of them, some, or none.
#pragma once
#include <memory>
#include <optional>
#include "dev/course/exercises/judge.h"

struct Disk {
    struct PowerFailure {};
    struct File {
        std::string now, flushed;
    };
    using Names = std::map<std::string, std::shared_ptr<File>>;

    Names names, flushed_names;
    std::vector<Names> since;            // the names after each change since flush_names()
    std::set<std::string> written;       // what write() has been called for
    int64_t moments = 0, fails_at = -1;  // before and after each call; that of the power failure

    // Creates the file, or empties the one of this name, and writes the bytes.
    void write(const std::string& name, const std::string& bytes) {
        moment();
        if (!names.count(name)) names[name] = std::make_shared<File>(), since.push_back(names);
        names[name]->flushed = "";  // emptying it may have reached the disk
        names[name]->now = bytes, written.insert(name);
        moment();
    }
    void flush(const std::string& name) {
        moment();
        if (names.count(name)) names[name]->flushed = names[name]->now;
        moment();
    }
    // Replaces the file of the new name, if there is one.
    void rename(const std::string& from, const std::string& to) {
        moment();
        if (names.count(from) && from != to) names[to] = names[from], names.erase(from), since.push_back(names);
        moment();
    }
    void remove(const std::string& name) {
        moment();
        if (names.erase(name)) since.push_back(names);
        moment();
    }
    void flush_names() {
        moment();
        flushed_names = names, since.clear();
        moment();
    }
    // What a name may stand for after a power failure; nothing: there is no such file.
    std::vector<std::optional<std::string>> left(const std::string& name) const {
        std::vector<std::optional<std::string>> found;
        std::vector<Names> possible = {flushed_names};
        possible.insert(possible.end(), since.begin(), since.end());
        for (const Names& at : possible) {
            const auto file = at.find(name);
            if (file == at.end()) {
                found.emplace_back();
                continue;
            }
            const File& f = *file->second;
            found.push_back(f.flushed);
            if (f.flushed != f.now) found.push_back(f.now), found.push_back(f.now.substr(0, f.now.size() / 2));
        }
        return found;
    }

private:
    void moment() {
        if (moments++ == fails_at) throw PowerFailure();
    }
};
