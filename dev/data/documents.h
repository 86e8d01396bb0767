// Reads documents in blocks of bounded size. A text file is one document, or several with a
// separator line between them; a .jsonl file has one document per line. A block is a part of one
// file, cut at a position where both sides can be encoded on their own (last_cut). So a document of
// any length needs little memory, and several threads can work on it.
#pragma once
#include <filesystem>
#include "llmc/base/text.h"
#include "llmc/data/tokenizer.h"

constexpr size_t BLOCK_BYTES = 256 << 10;         // of a block, where the text allows a cut
constexpr size_t LONGEST_UNCUT_BYTES = 16 << 20;  // of text that cannot be cut
constexpr size_t LONGEST_LINE_BYTES = 256 << 20;  // of .jsonl: a document, which is encoded as a whole

struct TextFile {
    std::string path;  // "-": stdin
    bool jsonl = false;
    int64_t bytes = -1;  // -1: not known
    const char* name() const { return path == "-" ? "stdin" : path.c_str(); }
};

struct Segment {
    size_t begin, end;
    bool starts_document;
};

struct Block {
    size_t file = 0;     // its index
    int64_t offset = 0;  // of text in the file
    std::string text;
    std::vector<Segment> segments;  // of plain text; those of .jsonl are its lines
    bool last = false;              // of its file
};

// The .txt and .jsonl files of a folder and the folders in it, sorted by path. Warns about other
// files.
inline std::vector<std::string> texts_in_folder(const std::string& folder) {
    namespace fs = std::filesystem;
    std::vector<std::string> paths;
    std::string other;
    int64_t others = 0;
    std::error_code error;
    fs::recursive_directory_iterator entry(folder, error);
    for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
        const std::string path = entry->path().string();
        std::error_code unknown;
        if (entry->is_directory(unknown)) continue;
        if (ends_with(path, ".txt") || ends_with(path, ".jsonl")) paths.push_back(path);
        else if (others++ == 0) other = path;
    }
    if (error) runtime_failure("cannot read the folder %s: %s", folder, error.message());
    if (paths.empty()) runtime_failure("the folder %s holds no .txt and no .jsonl file", folder);
    if (others > 0)
        warning("left out of %s: %s whose name ends neither in .txt nor in .jsonl, such as %s", folder,
                count_text(others, "file"), other);
    std::sort(paths.begin(), paths.end());
    return paths;
}

// Exit 2 if a file's name says that it is JSON, whose braces and names of fields nobody means to
// train on.
inline void refuse_json(const std::string& path) {
    if (ends_with(path, ".json") || ends_with(path, ".ndjson"))
        usage_error(
            "%s is JSON, no text: with --jsonl FIELD each of its lines is an object whose FIELD is a document; a list "
            "of objects becomes such lines by `jq -c '.[]' FILE.json > FILE.jsonl`; `- < FILE.json` takes all of it as "
            "text",
            path);
}

// The files that the arguments name, in their order: files, folders, - for stdin. Exit 1 if one
// cannot be opened. With prefers_jsonl, everything that does not end in .txt is .jsonl.
inline std::vector<TextFile> find_texts(const std::vector<std::string>& arguments, bool prefers_jsonl) {
    std::vector<TextFile> files;
    for (const std::string& argument : arguments) {
        if (argument == "-") {
            files.push_back({argument, prefers_jsonl, -1});
            continue;
        }
        const bool folder = folder_exists(argument);
        if (!folder && !prefers_jsonl) refuse_json(argument);
        for (const std::string& path : folder ? texts_in_folder(argument) : std::vector<std::string>{argument})
            files.push_back({path, prefers_jsonl ? !ends_with(path, ".txt") : ends_with(path, ".jsonl"),
                             FileReader(path).size_bytes});
    }
    return files;
}

// Reads the files one after the other and cuts them into blocks.
struct DocumentReader {
    const Tokenizer& tok;
    const std::vector<TextFile>& files;
    const std::string* separator;  // the line between documents of plain text; null: a file is one
    size_t file = 0;
    int fd = -1;
    bool at_end = false;  // of the file
    int64_t offset = 0;   // of rest in the file
    std::string rest;     // read, but not in a block yet
    // The current document of plain text, and the first line that was not compared with the
    // separator yet, as positions in rest; line_begin is negative if the line began in an earlier
    // block.
    bool document_is_new = true;
    size_t document_begin = 0, searched = 0;
    int64_t line_begin = 0;
    std::vector<Segment> segments;

    DocumentReader(const Tokenizer& t, const std::vector<TextFile>& f, const std::string* s)
        : tok(t), files(f), separator(s) {}

    bool next(Block& block);  // false after the last block, or when a signal came
    void open_file();
    bool read_more(size_t bytes);
    void close_document(size_t end);
    void find_separators();
    size_t cut_place();
    void give_out(Block& block, size_t cut);
};

inline void DocumentReader::open_file() {
    const TextFile& f = files[file];
    fd = f.path == "-" ? STDIN_FILENO : open(f.path.c_str(), O_RDONLY);
    if (fd < 0) runtime_failure("cannot open %s: %s", f.name(), strerror(errno));
    at_end = false, offset = 0, document_is_new = true, document_begin = searched = 0, line_begin = 0;
}

// Reads until rest has that many bytes or the file ends; false if interrupted by a signal.
inline bool DocumentReader::read_more(size_t bytes) {
    while (rest.size() < bytes && !at_end) {
        const size_t had = rest.size();
        rest.resize(bytes);
        const ssize_t n = read(fd, rest.data() + had, bytes - had);
        const int reason = errno;
        rest.resize(had + std::max<ssize_t>(n, 0));
        if (n < 0 && reason == EINTR) return false;
        if (n < 0) runtime_failure("cannot read %s: %s", files[file].name(), strerror(reason));
        at_end = n == 0;
    }
    return true;
}

inline void DocumentReader::close_document(size_t end) {
    if (end > document_begin) segments.push_back({document_begin, end, document_is_new});
}

// Compares every complete line with the separator; where they are equal, a document ends and the
// next one begins.
inline void DocumentReader::find_separators() {
    while (line_begin < (int64_t)rest.size()) {
        const size_t newline = rest.find('\n', searched);
        searched = rest.size();
        if (newline == rest.npos && !at_end) return;
        const int64_t end = std::min(newline, rest.size()), bytes = end - line_begin;
        const bool carriage = bytes == (int64_t)separator->size() + 1 && rest[end - 1] == '\r';
        if (bytes - carriage == (int64_t)separator->size() && line_begin >= 0 &&
            rest.compare(line_begin, separator->size(), *separator) == 0) {
            close_document(line_begin);
            document_begin = std::min<size_t>(end + 1, rest.size()), document_is_new = true;
        }
        line_begin = end + 1;
        searched = std::min<size_t>(line_begin, rest.size());
    }
}

// The position in rest where the block ends; 0 if more must be read first.
inline size_t DocumentReader::cut_place() {
    if (at_end) return rest.size();
    if (files[file].jsonl) return rest.rfind('\n') + 1;  // npos + 1 is 0
    if (!separator) return last_cut(tok, rest);
    if (document_begin > 0) return document_begin;
    const bool could_separate = (int64_t)rest.size() - line_begin <= (int64_t)separator->size() + 1;
    const size_t safe = could_separate ? std::max<int64_t>(line_begin, 0) : rest.size();
    return last_cut(tok, std::string_view(rest).substr(0, safe));
}

// Makes what is before the cut the block.
inline void DocumentReader::give_out(Block& block, size_t cut) {
    if (!files[file].jsonl && cut > document_begin) close_document(cut), document_is_new = false;
    block = Block{file, offset, rest.substr(0, cut), std::move(segments), at_end};
    segments.clear();
    rest.erase(0, cut);
    offset += cut, line_begin -= cut, document_begin -= std::min(document_begin, cut);
    searched -= std::min(searched, cut);
    if (!at_end) return;
    if (fd != STDIN_FILENO) close(fd);
    fd = -1, file++;
}

inline bool DocumentReader::next(Block& block) {
    if (file == files.size()) return false;
    if (fd < 0) open_file();
    for (size_t wanted = BLOCK_BYTES;; wanted = 2 * rest.size()) {
        if (!read_more(wanted)) return false;
        if (!files[file].jsonl && separator) find_separators();
        const size_t cut = cut_place();
        if (cut > 0 || at_end) return give_out(block, cut), true;
        const bool jsonl = files[file].jsonl;
        const size_t longest = jsonl ? LONGEST_LINE_BYTES : LONGEST_UNCUT_BYTES;
        if (rest.size() >= longest)
            runtime_failure("%s: no %s in %d MiB from byte %d on; this is no text", files[file].name(),
                            jsonl ? "end of the line" : "place between words", longest >> 20, offset);
    }
}

// ---- files that are not text

struct TextCheck {
    int64_t zero = -1, invalid = 0, first_invalid = -1;
};  // positions in the text, -1: none

// Finds zero bytes and bytes that are not UTF-8. Where eight bytes are ASCII, it skips them at
// once.
inline TextCheck check_text(std::string_view text) {
    TextCheck check;
    for (size_t at = 0, length; at < text.size(); at += length) {
        uint64_t word = 0;
        length = 8;
        if (at + 8 <= text.size()) memcpy(&word, text.data() + at, 8);
        if (word && !((word - 0x0101010101010101u) & 0x8080808080808080u) && !(word & 0x8080808080808080u)) continue;
        if (text[at] == 0 && check.zero < 0) check.zero = (int64_t)at;
        if (code_point_at(text, at, length) >= 0) continue;
        if (check.invalid++ == 0) check.first_invalid = (int64_t)at;
    }
    return check;
}
