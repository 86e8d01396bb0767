// Runs a parser on an input within this process, and checks what is promised of any input: the
// parser returns, or ends the program with status 1 or 2; it says one sentence on stderr if it ends
// the program, and nothing but warnings else; it allocates no more than the input justifies. The
// sanitizers check the rest. A broken promise ends the process by abort().
#pragma once
#include <sys/stat.h>
#include "dev/test/fuzz/mutate.h"
#include "llmc/base/file.h"

struct Parser {
    const char* name;
    Layout layout;
    std::vector<std::string> (*seeds)();  // valid inputs
    void (*run)(const std::string& input);
    void (*repair)(std::string& input) = nullptr;  // makes checksums right again, so that what they cover is read
    int64_t base_bytes = 8 << 20, factor = 64;     // it may allocate base_bytes + factor * bytes of the input
};

// ---- broken promises

[[noreturn]] inline void broken(const std::string& promise) {
    dprintf(2, "broken promise: %s\n", promise.c_str());
    abort();
}
inline void expect(bool good, const char* promise) {
    if (!good) broken(promise);
}

// ---- allocations

// Of AddressSanitizer; not every compiler comes with the header, sanitizer/allocator_interface.h.
extern "C" size_t __sanitizer_get_allocated_size(const volatile void* p);
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                                         void (*on_free)(const volatile void*));

inline int64_t live_bytes = 0, peak_bytes = 0;
inline void watch_allocations() {
    auto on_malloc = [](const volatile void*, size_t bytes) {
        live_bytes += (int64_t)bytes;
        peak_bytes = std::max(peak_bytes, live_bytes);
    };
    auto on_free = [](const volatile void* p) {
        if (p) live_bytes -= (int64_t)__sanitizer_get_allocated_size(p);
    };
    __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
}

// ---- a folder for files, which is empty before each case

inline std::string scratch;
inline void empty_scratch() {
    for (const std::string& name : list_folder(scratch))
        if (name != "." && name != "..") unlink((scratch + "/" + name).c_str());
}
inline void make_scratch() {
    std::string pattern = std::string(folder_exists("/dev/shm") ? "/dev/shm" : "/tmp") + "/gpt2_fuzz_XXXXXX";
    if (!mkdtemp(pattern.data())) runtime_failure("cannot create %s: %s", pattern, strerror(errno));
    scratch = pattern;
}
inline void remove_scratch() {
    empty_scratch();
    rmdir(scratch.c_str());
}
// Writes a file there, and returns its path.
inline std::string scratch_file(const std::string& name, const std::string& bytes) {
    const std::string path = scratch + "/" + name;
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, bytes.data(), bytes.size()) != (ssize_t)bytes.size()) broken("cannot write " + path);
    close(fd);
    return path;
}
inline std::string content_of(const std::string& path) {
    FileReader file(path);
    std::string bytes(file.size_bytes, '\0');
    file.read(bytes.data(), bytes.size(), "its bytes");
    return bytes;
}

// ---- one case

struct Ended {
    int status;
};

// What a parser has said must be whole lines, each a warning, but for one sentence if it has ended
// the program.
inline void check_said(const std::string& said, int status) {
    int sentences = 0;
    for (size_t at = 0, end; at < said.size(); at = end + 1) {
        end = said.find('\n', at);
        const bool error = said.compare(at, 7, "error: ") == 0, warning = said.compare(at, 9, "warning: ") == 0;
        if (end == said.npos || (!error && !warning)) broken("it says, not in one sentence: " + said.substr(0, 600));
        sentences += error;
    }
    if (sentences != (status != 0)) broken(format("status %d with %d sentences: %s", status, sentences, said));
}

// Returns how the parser ended: 0, 1 or 2.
inline int run_case(const Parser& parser, const std::string& input) {
    end_after_failure = [](int status) { throw Ended{status}; };
    empty_scratch();
    char* text = nullptr;
    size_t bytes = 0;
    FILE* const usual = stderr;
    stderr = open_memstream(&text, &bytes);
    int status = 0;
    const int64_t before = peak_bytes = live_bytes;
    try {
        parser.run(input);
    } catch (const Ended& ended) { status = ended.status; }
    const int64_t allocated = peak_bytes - before,
                  justified = parser.base_bytes + parser.factor * (int64_t)input.size();
    fclose(stderr);
    stderr = usual;
    const std::string said(text, bytes);
    free(text);
    check_said(said, status);
    if (status < 0 || status > 2) broken(format("status %d", status));
    if (allocated > justified) broken(format("it allocates %d bytes for an input of %d", allocated, input.size()));
    return status;
}
