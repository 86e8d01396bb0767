#!/bin/sh
# Runs the AMX instructions of llmc/cpu/matrix_unit.h on a CPU that has none: in Bochs 2.8 or newer, which emulates one
# that does. It boots the program itself, since Linux offers AMX only where it can be switched off for each thread,
# which that emulator cannot.
#
#     apt-get install bochs bochs-term bochsbios vgabios grub-pc-bin grub-common xorriso mtools  # Debian 13 or newer
#     dev/test/amx/run.sh
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
cd "$(dirname "$0")/../../.."
dir=build/amx
mkdir -p $dir/iso/boot/grub
${CXX:-g++} -std=c++17 -O2 -march=x86-64-v3 -ffp-contract=fast -Wno-psabi -fno-builtin -fno-stack-protector \
    -fno-pic -mno-red-zone -fno-threadsafe-statics -fno-asynchronous-unwind-tables -I. \
    -c dev/test/amx/kernel.cpp -o $dir/kernel.o
${CXX:-g++} -c dev/test/amx/boot.S -o $dir/boot.o
cat > $dir/link.ld <<'L'
ENTRY(start)
SECTIONS {
    . = 1M;
    .multiboot : { KEEP(*(.multiboot)) }
    .text : { *(.text*) }
    .rodata : { *(.rodata*) }
    .data : { *(.data*) }
    .bss : { *(.bss*) *(COMMON) }
    /DISCARD/ : { *(.eh_frame*) *(.note*) *(.comment*) *(.gcc_except_table*) }
}
L
ld -n --no-warn-rwx-segments -T $dir/link.ld -o $dir/iso/boot/kernel.elf $dir/boot.o $dir/kernel.o
printf 'set timeout=0\nmenuentry tests { multiboot2 /boot/kernel.elf\nboot }\n' > $dir/iso/boot/grub/grub.cfg
grub-mkrescue -o $dir/amx.iso $dir/iso > $dir/grub.log 2>&1
vgabios=$(ls /usr/share/bochs/VGABIOS-lgpl-latest /usr/share/vgabios/vgabios.bin 2> /dev/null | tail -n 1)
cat > $dir/bochsrc <<B
cpu: model=sapphire_rapids, ips=100000000
memory: guest=256, host=256
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=$vgabios
ata0-master: type=cdrom, path=$dir/amx.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$dir/serial.txt
display_library: rfb, options="timeout=0"
log: $dir/bochs.log
clock: sync=none
B
rm -f $dir/serial.txt
(echo c; sleep 120) | timeout 120 bochs -q -f $dir/bochsrc > $dir/bochs.out 2>&1 &
bochs=$!
for second in $(seq 110); do
    sleep 1
    grep -q 'differ' $dir/serial.txt 2> /dev/null && break
done
kill $bochs 2> /dev/null || true
pkill -f "bochs -q -f $dir/bochsrc" || true
cat $dir/serial.txt
grep -q '^products on AMX: [1-9][0-9]* equal, 0 differ$' $dir/serial.txt
