# From a boot loader (multiboot2, 32 bits) to C++ in 64 bits with AMX switched on: pages that map the first gigabyte to itself, long mode, and the
# parts of the processor's state that vectors and matrix registers need, in XCR0. Calls run_tests() and stops.
.section .multiboot, "a"
.align 8
header: .long 0xe85250d6, 0, end - header, -(0xe85250d6 + end - header)
.short 0, 0
.long 8
end:
.section .bss
.align 4096
level4: .skip 4096
level3: .skip 4096
level2: .skip 4096
.skip 1048576
stack:
.section .text
.code32
.globl start
start:
  cli
  movl $level3 + 3, level4
  movl $level2 + 3, level3
  xorl %ecx, %ecx
1: movl %ecx, %eax
  shll $21, %eax
  orl $0x83, %eax                       # 2 MiB, present, writable
  movl %eax, level2(,%ecx,8)
  incl %ecx
  cmpl $512, %ecx
  jne 1b
  movl $level4, %eax
  movl %eax, %cr3
  movl %cr4, %eax
  orl $0x40620, %eax                    # physical address extension, SSE and its exceptions, XSAVE
  movl %eax, %cr4
  movl $0xC0000080, %ecx                # EFER
  rdmsr
  orl $0x100, %eax                      # long mode
  wrmsr
  movl %cr0, %eax
  andl $0xfffffff3, %eax                # no emulation of floating point
  orl $0x80000002, %eax                 # paging
  movl %eax, %cr0
  lgdt table
  ljmp $8, $long_mode
.align 8
segments: .quad 0, 0x00af9a000000ffff, 0x00cf92000000ffff
table: .word 23
  .long segments
.code64
long_mode:
  movw $16, %ax
  movw %ax, %ds
  movw %ax, %es
  movw %ax, %ss
  movabsq $stack, %rsp
  xorl %ecx, %ecx
  xorl %edx, %edx
  movl $0x602e7, %eax                   # x87, SSE, AVX, AVX-512, keys, matrix registers and their configuration
  xsetbv
  call run_tests
2: hlt
  jmp 2b
.section .note.GNU-stack, "", @progbits
