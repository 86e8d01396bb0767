"""For gdb: `source dev/cusim/gdb.py`, then

    cuda-threads            where each thread of the block at work is: finished, waiting (at which line), not started
    cuda-thread X [Y Z]     the backtrace of one of them, also of one that waits
"""
import gdb

STATES = ["not started", "can go on", "at a barrier", "in a warp collective", "finished", "at an mbarrier",
          "in wgmma"]


def block():
    worker = gdb.parse_and_eval("'cusim::worker'")
    if int(worker) == 0 or int(worker["kernel"]) == 0:
        raise gdb.GdbError("no kernel is running on this thread of the program")
    threads = worker["threads"]["_M_impl"]
    begin, end = threads["_M_start"], threads["_M_finish"]
    return worker, [begin[i] for i in range(int(end - begin))]


def name(thread):
    index = thread["index"]
    return f"({index['x']},{index['y']},{index['z']})"


class CudaThreads(gdb.Command):
    def __init__(self):
        super().__init__("cuda-threads", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        worker, threads = block()
        for thread in threads:
            state = int(thread["state"])
            waits = state in (2, 3, 5, 6)
            where = f" {thread['location']['file'].string()}:{thread['location']['line']}" if waits else ""
            here = "  <- here" if int(worker["current"]) == int(thread.address) else ""
            print(f"thread {name(thread)} {STATES[state]}{where}{here}")


class CudaThread(gdb.Command):
    def __init__(self):
        super().__init__("cuda-thread", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        wanted = (gdb.string_to_argv(argument) + ["0", "0", "0"])[:3]
        worker, threads = block()
        thread = next((t for t in threads if name(t) == f"({','.join(wanted)})"), None)
        if thread is None:
            raise gdb.GdbError(f"the block has no thread ({','.join(wanted)})")
        if int(worker["current"]) == int(thread.address):
            return gdb.execute("backtrace 6")
        if int(thread["state"]) in (0, 4):
            state = "not started" if int(thread["state"]) == 0 else "finished"
            raise gdb.GdbError(f"thread {name(thread)} has {state}")
        # The switch saved the registers on the thread's stack: r15 r14 r13 r12 rbx rbp, then where it returns to.
        sp = int(thread["fiber"]["context"]["stack_pointer"])
        word = lambda i: int(gdb.parse_and_eval(f"*(unsigned long*){sp + 8 * i}"))
        registers = ["r15", "r14", "r13", "r12", "rbx", "rbp", "rip"]
        keep = {r: int(gdb.parse_and_eval(f"(unsigned long)${r}")) for r in registers + ["rsp"]}
        gdb.execute("frame 0", to_string=True)
        for i, register in enumerate(registers):
            gdb.execute(f"set ${register} = {word(i)}")
        gdb.execute(f"set $rsp = {sp + 8 * len(registers)}")
        try:
            gdb.execute("backtrace 6")
        finally:
            gdb.execute("frame 0", to_string=True)
            for register, value in keep.items():
                gdb.execute(f"set ${register} = {value}")


CudaThreads()
CudaThread()
