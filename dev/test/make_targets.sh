#!/bin/sh
# What make builds for what, in a copy of the tree with a compiler that only notes what it is asked for: kinds of builds
# leave each other's programs alone, and data is made for what runs with it, by a program of this machine.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
# Without what other tests may be writing.
tar cf - --exclude 'shakespeare*.bin' --exclude '*.tmp' --exclude __pycache__ Makefile llmc dev \
    scripts train_gpt2_cpu.cpp train_gpt2.cu test_gpt2.cu | tar xf - -C "$copy"
cd "$copy"
cat > compiler <<'END'
#!/bin/sh
echo "$@" >> compiled
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
[ -z "$out" ] || printf '#!/bin/sh\nexit 126\n' > "$out"
END
cat > host_compiler <<'END'
#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
echo "touch dev/data/shakespeare_train.bin dev/data/shakespeare_val.bin" > "$out"
chmod +x "$out"
END
chmod +x compiler host_compiler
make="make -s MPI=no CXX=$copy/compiler HOSTCXX=$copy/host_compiler ARCH=armv8-a"
compiled() { grep -c -- "$1" compiled || true; }
expect() { [ "$2" = "$3" ] || { echo "$1: $2, wanted $3"; exit 1; }; }

# The Makefile is short, and make help lists what the rules of dev/ add.
[ "$(wc -l < Makefile)" -lt 150 ] || { echo "the Makefile has $(wc -l < Makefile) lines"; exit 1; }
for target in train_gpt2_cpu talk quickstart test test-all train_gpt2sim bench-cpu check-cuda test-sanitized format; do
    $make help | grep -q "^$target  *[a-z]" || { echo "make help does not list $target"; exit 1; }
done

$make train_gpt2_cpu tokenize train_gpt2sim
expect "data made to build programs" "$(ls dev/data | grep -c 'shakespeare_.*bin')" 0
expect "trainers compiled" "$(compiled 'o build/train_gpt2_cpu')" 1
$make SANITIZE=address train_gpt2_cpu
$make SANITIZE=thread build-thread/test_host
$make DEBUG=1 train_gpt2_cpu
$make train_gpt2_cpu tokenize
$make PRECISION=FP32 train_gpt2sim
$make train_gpt2sim
expect "trainers compiled again after other builds" "$(compiled 'o build/train_gpt2_cpu')" 1
expect "simulators compiled again after one of another precision" "$(compiled 'o build/BF16/train_gpt2sim')" 1
cmp train_gpt2_cpu build/train_gpt2_cpu
$make ARCH=armv8.2-a train_gpt2_cpu
expect "trainers compiled after ARCH changed" "$(compiled 'o build/train_gpt2_cpu')" 2
$make data
expect "shards made" "$(ls dev/data | grep -c 'shakespeare_.*bin')" 2
# The trainers do not know of the programs that split models.
rm -r dev/parallel
! grep -l 'dev/parallel' -r llmc train_gpt2_cpu.cpp train_gpt2.cu test_gpt2.cu --include='*.[hc]*' || exit 1
$make -B train_gpt2_cpu
expect "trainers compiled without dev/parallel" "$(compiled 'o build/train_gpt2_cpu')" 3
rm dev/data/shakespeare_train.bin
$make data
expect "shards made again" "$(ls dev/data | grep -c 'shakespeare_.*bin')" 2
$make -n NVCC="$copy/compiler" CUDA_INCLUDE=/headers CUDA_LIB=/libraries train_gpt2cu > commands
expect "nvcc is told the folders" "$(grep -c -e ' -I/headers .* -L/libraries -lcublasLt' commands)" 1
# What the first minutes on a GPU run: every precision, models after GPT-2 and every ladder, built for the same GPU, and
# a note of it.
printf '#!/bin/sh\n[ "$1" = --version ] && echo "release 13.1, V13.1.80" || exec %s/compiler "$@"\n' "$copy" > nvcc
chmod +x nvcc
$make NVCC="$copy/nvcc" GPU_ARCH=90a gpu_day_programs > /dev/null
ladders=$(ls dev/cuda/*.cu | sed 's:.*/::; s:\.cu$::' | grep -v all_reduce)
programs=$(for format in BF16 FP32 FP16; do echo $format/train_gpt2cu $format/test_gpt2cu; done)
programs="$programs BF16/test_modern_cuda FP32/test_modern_cuda"
for program in $programs $(echo "$ladders" | sed 's:^:cuda/:'); do
    [ -s "build/gpu_day/$program" ] || { echo "gpu_day_programs builds no $program"; exit 1; }
done
expect "what was built for sm_90a" "$(compiled 'code=sm_90a .*-o build/gpu_day/')" $((8 + $(echo "$ladders" | wc -l)))
expect "packed by nvcc 13" "$(compiled '-compress-mode=size .*-o build/gpu_day/')" $((8 + $(echo "$ladders" | wc -l)))
expect "the note" "$(cat build/gpu_day/built.json)" '{"cuda": "13.1", "archs": "90a"}'
[ -e build/gpu_day/shakespeare_train.bin ] && [ ! -e build/gpu_day/objects ] || { echo "what goes along"; exit 1; }
# nvcc knows no -Wl and no -pthread: what MPI's compiler links with is said in nvcc's words.
mkdir mpi
for link in "-pthread -L/mpi/lib -Wl,-rpath -Wl,/mpi/lib -Wl,--enable-new-dtags -lmpi" \
    "-L/hpcx/lib -Wl,-rpath,/mpi/lib -Wl,--as-needed -lmpi_cxx -lmpi"; do
    printf '#!/bin/sh\ncase $1 in *link*) echo "%s" ;; *) echo -I/mpi/include -pthread ;; esac\n' "$link" > mpi/mpicxx
    chmod +x mpi/mpicxx
    PATH=$copy/mpi:$PATH make -n -s CXX="$copy/compiler" NVCC="$copy/compiler" NCCL=yes train_gpt2cu > commands
    grep "train_gpt2.cu " commands > linked
    expect "nvcc is told -Wl or -pthread" "$(grep -c -e ' -Wl' -e ' -pthread' linked)" 0
    expect "nvcc is told where MPI is" "$(grep -c -e '-Xlinker -rpath.*/mpi/lib .*-lmpi' linked)" 1
    expect "nvcc is told MPI's headers" "$(grep -c -e ' -I/mpi/include' linked)" 1
done
