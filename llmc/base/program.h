// What every program does around its work: it opens closed standard streams, and ends with a
// sentence if memory was refused or its output could not be written.
#pragma once
#include <fcntl.h>
#include <unistd.h>
#include <exception>
#include <new>
#include <stdexcept>
#include "llmc/base/check.h"

// Opens each closed standard stream on /dev/null. Otherwise the next file that is opened would get
// its number, and with it the text meant for the stream. stdout is opened for reading only: then
// writing to it fails, and run_program() sees that the output is lost.
inline void occupy_closed_streams() {
    for (int fd : {0, 1, 2})
        if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY);
}

// Runs work() and returns its status, or 1 if its output was lost.
template <class Work>
inline int run_program(Work work) {
    occupy_closed_streams();
    int status = 1;
    const char* no_memory =
        "out of memory: an allocation was refused; smaller sizes need less (ulimit -v shows what a process may have)";
    try {
        status = work();
    } catch (const std::bad_alloc&) { runtime_failure("%s", no_memory); } catch (const std::length_error&) {
        runtime_failure("%s", no_memory);
    } catch (const std::exception& problem) { runtime_failure("%s", problem.what()); }
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    if (status == 0)
        runtime_failure(
            "stdout could not be written (full, closed, or its reader is gone): what was printed is lost, all else "
            "is done");
    return status;
}
