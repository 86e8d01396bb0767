// Fibers: a stack for each CUDA thread, and the switch from one stack to another. A switch is a
// function call that returns on another stack: it saves the registers that a function must
// preserve, exchanges the stack pointer, and restores the registers that were saved there.
#include "dev/cusim/cusim_inside.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#ifdef CUSIM_SANITIZE_address
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef CUSIM_SANITIZE_thread
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
}
#endif
#if !defined(__x86_64__) && !defined(CUSIM_UCONTEXT)
#define CUSIM_UCONTEXT
#endif

namespace cusim {

#ifdef CUSIM_SANITIZE_address
const size_t STACK_BYTES = 256 << 10;
#else
const size_t STACK_BYTES = 128 << 10;
#endif
constexpr size_t STACK_GUARD_BYTES = 64 << 10;

struct Context {
#ifdef CUSIM_UCONTEXT
    ucontext_t context;
#else
    void* stack_pointer = nullptr;
#endif
    char* stack = nullptr;
    void *tsan = nullptr, *asan_fake = nullptr;
};

#ifndef CUSIM_UCONTEXT
// Saves the registers that a function must preserve on the stack that it leaves, and restores them
// from the one that it enters. gdb.py knows their order.
extern "C" void cusim_switch(void** leave, void* enter);
asm(R"(
.text
.globl cusim_switch
.type cusim_switch,@function
cusim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cusim_switch,.-cusim_switch
)");
#endif

void switch_context(Context* from, Context* to) {
#ifdef CUSIM_SANITIZE_address
    __sanitizer_start_switch_fiber(&from->asan_fake, to->stack, STACK_BYTES);
#endif
#ifdef CUSIM_SANITIZE_thread
    __tsan_switch_to_fiber(to->tsan, 1);  // 1: the switch itself orders nothing; barriers do
#endif
#ifdef CUSIM_UCONTEXT
    swapcontext(&from->context, &to->context);
#else
    cusim_switch(&from->stack_pointer, to->stack_pointer);
#endif
#ifdef CUSIM_SANITIZE_address
    __sanitizer_finish_switch_fiber(from->asan_fake, nullptr, nullptr);
#endif
}

void fiber_begins() {
#ifdef CUSIM_SANITIZE_address
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

// The context's first switch enters body().
static void prepare(Context& context, char* top, void (*body)()) {
#ifdef CUSIM_UCONTEXT
    getcontext(&context.context);
    context.context.uc_stack.ss_sp = context.stack;
    context.context.uc_stack.ss_size = top - context.stack;
    context.context.uc_link = nullptr;
    makecontext(&context.context, body, 0);
#else
    void** sp = (void**)((uintptr_t)top / 16 * 16);
    *--sp = nullptr;      // in place of a caller's return address: at entry rsp % 16 == 8, as the ABI requires
    *--sp = (void*)body;  // what the first switch returns to
    sp -= 6;              // six registers, with any values
    memset(sp, 0, 6 * sizeof(void*));
    context.stack_pointer = sp;
#endif
}

Fiber* new_fiber(void (*body)(), size_t number) {
    char* memory = (char*)mmap(nullptr, STACK_BYTES + STACK_GUARD_BYTES, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail(NOWHERE, "no memory for the stack of a thread");
    mprotect(memory, STACK_GUARD_BYTES, PROT_NONE);  // an overflow faults
    Fiber* fiber = new Fiber;
    fiber->context = new Context;
    fiber->context->stack = memory + STACK_GUARD_BYTES;
    const size_t offset = number % 32 * 192;  // otherwise all stacks would begin in the same sets of the cache
    prepare(*fiber->context, fiber->context->stack + STACK_BYTES - 64 - offset / 16 * 16, body);
#ifdef CUSIM_SANITIZE_thread
    fiber->context->tsan = __tsan_create_fiber(0);
#endif
    return fiber;
}

Context* this_context() {
    static thread_local Context* home = nullptr;
    if (!home) {
        home = new Context;
        pthread_attr_t attributes;  // ASan needs the stack that is switched back to
        void* stack;
        size_t bytes;
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, &stack, &bytes);
        pthread_attr_destroy(&attributes);
        home->stack = (char*)stack + bytes - STACK_BYTES;
        static thread_local char signal_stack[64 << 10];  // for faults on a stack that has overflowed
        stack_t alternate{};
        alternate.ss_sp = signal_stack, alternate.ss_size = sizeof(signal_stack);
        sigaltstack(&alternate, nullptr);
    }
#ifdef CUSIM_SANITIZE_thread
    home->tsan = __tsan_get_current_fiber();
#endif
    return home;
}

bool in_stack(const Fiber* fiber, const void* p) {
    return p >= fiber->context->stack && p < fiber->context->stack + STACK_BYTES;
}
bool in_guard_of_stack(const Fiber* fiber, const void* p) {
    return p >= fiber->context->stack - STACK_GUARD_BYTES && p < fiber->context->stack;
}

}  // namespace cusim
