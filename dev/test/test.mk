# The tests: parts of `make test` and `make test-all`. make builds what the parts need and runs them, JOBS at a time. A
# part has folders and ports of its own and waits for no other part; if it shares files with one, that one is among its
# needs. A part that calls make needs all that another part may be building. dev/test/part.sh runs a part and keeps what
# it printed in build/test, dev/test/run.sh adds up the results. `make part-NAME` runs one alone.
#
#   $(call program,NAME,NEEDS,COMMAND)        a test program, whose last line is N passed, N failed, N skipped
#   $(call check,NAME,TITLE,NEEDS,COMMAND)    passes if the command succeeds; `skip "what enables it"` skips it
#
# No commas and no single quotes in the arguments. To add a test program dev/test/test_NAME.cpp, add it to TESTS.

.PHONY: test-programs test-sanitized test-compilers check-headers fuzz chaos
$(B)/test_%: dev/test/test_%.cpp $(FLAGS_FILE)
	$(compile)
# Programs that include the trainer, and those that test the kernels as they are in it.
$(B)/test_model $(B)/test_model_bf16 $(B)/test_peak $(B)/bench/roofline: $(B)/services.o $(B)/compiled_once.o
$(B)/test_kernels $(B)/test_softmax $(B)/test_documents $(B)/test_window $(B)/test_weight_codes: $(B)/compiled_once.o
$(B)/fake_nvml/libnvidia-ml.so.1: dev/test/fake_nvml.cpp $(FLAGS_FILE)
	@mkdir -p $(@D)
	$(TIMED) $(CXX) $(CXXFLAGS) -shared -fPIC $< -o $@
$(B)/fuzz_parsers: dev/test/fuzz/fuzz_parsers.cpp $(B)/services.o $(FLAGS_FILE)
	$(compile)
build/fail_calls.so: dev/test/fail_calls.cpp
	@mkdir -p $(@D)
	$(TIMED) $(CXX) -std=c++17 -O1 -Wall -Wextra -shared -fPIC $< -o $@ -ldl
$(B)/planted_bench: dev/test/planted_bench.cpp $(FLAGS_FILE)
	$(compile)

PARTS :=
NEEDS :=
program = $(eval $(call part,program,$(1),$(1),$(2),$(3)))
check   = $(eval $(call part,check,$(1),$(2),$(3),$(4)))
define part
PARTS += part-$(2)
NEEDS += $(4)
.PHONY: part-$(2)
part-$(2): $(4)
	@dev/test/part.sh $(1) '$(2)' '$(strip $(3))' '$(strip $(5))'
endef

# ---- what `make test` runs. What takes longest comes first, so that those that end last are short.

CPU   := train_gpt2_cpu tokenize $(B)/unigram $(SHARED)/host/model_table $(DATA)
SIM16 := $(B)/BF16/train_gpt2sim
SIM32 := $(B)/FP32/train_gpt2sim
# Test programs: those that test headers, those that run the CPU's programs, and those that run the simulator's.
TESTS     := test_kernels test_model test_model_bf16 test_softmax test_documents test_window test_threads test_peak \
             test_host test_course test_weight_codes
TESTS_CPU := test_runs test_resume test_checkpoints test_start_stop test_output test_rendezvous test_tokenize \
             test_token_shards test_meeting_place test_vocab test_data_files test_metrics test_evaluate test_sources
TESTS_SIM := test_without_mpi test_sim test_gpus test_algorithms test_plan test_loss_mask test_tensor_log
$(B)/test_course: CXXFLAGS += -Wno-unknown-pragmas  # those of OpenMP: what it tests is small
# What they test is compiled for itself. -O1 halves the time that their own code takes; those that run programs do
# next to nothing themselves.
LESS_OPTIMIZED := $(filter-out test_peak test_course,$(TESTS)) test_optimizers test_vocab test_adapt test_distill
RUN_PROGRAMS   := $(filter-out test_vocab,$(TESTS_CPU)) $(TESTS_SIM) test_processes test_hangs test_warmup test_fp16 \
                  test_dropout test_compressed test_shards test_messages
OWN_FLAGS = $(if $(DEBUG),,$(if $(filter $(@F),$(LESS_OPTIMIZED)),-O1)$(if $(filter $(@F),$(RUN_PROGRAMS)),-O0))
# The groups of tests that `make test` runs, where those of a program are divided.
GROUPS_test_checkpoints := files
GROUPS_test_loss_mask   := masks

TRAINERS := $(CPU) $(SIM16) $(SIM32)
$(call program,test_adapt,$(B)/test_adapt $(TRAINERS),$(B)/test_adapt names kernels frozen adapter_files)
$(call program,test_distill,$(B)/test_distill $(TRAINERS),$(B)/test_distill)
$(call program,test_messages,$(B)/test_messages $(TRAINERS),$(B)/test_messages codes refusals moving)
$(call program,test_processes,$(B)/test_processes $(TRAINERS),\
    $(B)/test_processes checkpoints deaths starts)
SIM_NEEDS := $(TRAINERS) $(B)/cusim_seeded_bugs $(B)/cusim_hopper_bugs $(B)/cuda/all_reduce \
             $(B)/fake_nvml/libnvidia-ml.so.1
$(foreach t,$(TESTS_SIM),$(call program,$t,$(B)/$t $(SIM_NEEDS),$(B)/$t $(GROUPS_$t)))
$(call program,test_gpt2sim_kernels,$(B)/BF16/test_gpt2sim,$(B)/BF16/test_gpt2sim kernels)
$(foreach t,$(TESTS_CPU),$(call program,$t,$(B)/$t $(CPU),$(B)/$t $(GROUPS_$t)))
$(foreach t,$(TESTS),$(call program,$t,$(B)/$t,$(B)/$t))
$(call program,test_optimizers,$(B)/test_optimizers,$(B)/test_optimizers rules)
ladders = $(foreach l,$(2),$(call program,ladder_$(1)_$(notdir $l),$l,$l --check))
$(call ladders,cuda,$(B)/cuda/all_reduce)

$(call check,make,kinds of builds and data,,dev/test/make_targets.sh)
$(call check,test_runner,the runner of the tests counts what fails,,dev/test/runner.sh)
$(call check,width,no source line is wider than 120 columns,,dev/width.py)
$(call check,width_finds,the check of widths finds what is too wide,,dev/test/width.sh)
$(call check,house,floors and lengths and names and openings are as the house has them,,dev/house.py --check)
$(call check,house_finds,the check of the house finds what breaks a rule,,dev/test/house.py)
$(call check,formats,values fit the formats of the sentences that they are in,,dev/test/formats.py)
$(call check,formats_finds,the check of formats finds what does not fit,,dev/test/formats.sh)
$(call check,portable_rules,make files and scripts are those of macOS as well,,dev/test/portable.sh rules)
UNTIMED := cudaStreamSynchronize|cudaDeviceSynchronize|cudaEventSynchronize|cudaMemcpy[(]
$(call check,waits,the host waits for a GPU only in wait.cuh,,\
    ! grep -nE "$(UNTIMED)" train_gpt2.cu test_gpt2.cu llmc/cuda/*.cuh dev/cuda/*.cu dev/cuda/*.cuh)
$(call check,hot_loops,sums over processes are vectors though what surrounds them is not optimized,$(CPU),\
    [ "$(shell uname -m; $(CXX) --version | grep -c clang)" = "x86_64 0" ] || skip "for g++ on x86-64";\
    objdump -d --disassemble=_Z7add_twoPfPKfS1_l train_gpt2_cpu | grep -q addps)
$(call check,format,laid out as make format does,,\
    dev/format.py --program || skip "pip install clang-format==14.0.6"; dev/format.py --check)
$(call check,script_help,every script answers --help and does nothing else,,dev/test/script_help.py)
$(call check,readme_tables,tables of several machines on one page and those of the first page,,\
    dev/test/readme_tables.py && dev/first_page.py --check)
$(call check,course,lesson zero trains as train_gpt2_cpu does,train_gpt2_cpu gpt2,dev/test/course.py)
$(call check,course_pages,the chapters quote the code that ships,,dev/course/pages.py --check)
$(call check,course_formulas,the formulas of the chapters are computed,,\
    dev/course/formulas.py --packages || skip "pip install numpy"; dev/course/formulas.py --changed)
$(call check,course_formulas_find,the check of formulas finds what is wrong,,\
    dev/course/formulas.py --packages || skip "pip install numpy"; dev/test/formulas.py)
$(call check,operations,messages that troubleshooting quotes and what the Dockerfile runs,,dev/test/operations.py)
$(call check,trace,time lines of traced steps,$(CPU) $(SIM16),dev/test/trace.py)
SHORT := $(PARTS)
test-programs: $(sort $(NEEDS))       ## what `make test` runs, compiled

# ---- what `make test-all` adds

$(call check,planted_bench,a bench fails variants that are wrong,$(B)/planted_bench,dev/test/planted_bench.sh)
$(call check,bench_table,tables and charts of a bench,$(B)/bench/gelu,dev/test/bench_table.sh)
$(call program,talk,$(CPU) talk $(SIM16),dev/test/talk.py)
$(call program,test_checkpoints_calls,$(B)/test_checkpoints $(CPU),$(B)/test_checkpoints calls)
$(call program,test_loss_mask_skips,$(B)/test_loss_mask $(TRAINERS),$(B)/test_loss_mask skips)
$(call check,scripts,the recipes and multi-node scripts run,$(CPU) $(SIM16),dev/test/scripts.sh)
$(call check,exercises_model,judges of the exercises on the model,,$(MAKE) -s prove-model)
$(call program,test_warmup,$(B)/test_warmup $(TRAINERS),$(B)/test_warmup)
$(call program,test_adapt_runs,$(B)/test_adapt $(TRAINERS),\
    $(B)/test_adapt same_bits plans simulated processes)
$(call program,test_dropout,$(B)/test_dropout $(TRAINERS),$(B)/test_dropout)
$(call program,test_compressed,$(B)/test_compressed $(TRAINERS),$(B)/test_compressed)
$(call program,test_processes_numbers,$(B)/test_processes $(TRAINERS),\
    $(B)/test_processes same_numbers order_and_bytes)
$(call program,test_shards,$(B)/test_shards $(TRAINERS),$(B)/test_shards)
$(call program,test_messages_runs,$(B)/test_messages $(TRAINERS),$(B)/test_messages bytes runs)
$(call program,test_optimizers_runs,$(B)/test_optimizers $(TRAINERS),$(B)/test_optimizers runs)
$(foreach p,BF16 FP32,$(call program,test_gpt2sim_$p,$(B)/$p/test_gpt2sim,\
    CUSIM_LAUNCHES=build/launches_$p.new $(B)/$p/test_gpt2sim && mv build/launches_$p.new build/launches_$p))
$(foreach g,kernels pytorch,$(call program,test_gpt2sim_FP16_$g,$(B)/FP16/test_gpt2sim,$(B)/FP16/test_gpt2sim $g))
$(call program,test_fp16,$(B)/test_fp16 $(CPU) $(SIM16) $(B)/FP16/test_gpt2sim,$(B)/test_fp16)
$(call ladders,cpu,$(LADDERS))
$(call ladders,cuda,$(filter-out $(B)/cuda/all_reduce,$(SIM_LADDERS)))
$(call check,headers,every header compiles alone and twice,$(SIM_SOURCES),$(MAKE) -s check-headers)
$(foreach p,fp32 bf16,$(call check,roofline_$p,the roofline of a step in $p,$(B)/bench/roofline,\
    build/bench/roofline 2 16 $p L2C48H3V300 1 && build/bench/roofline 2 16 $p L3C48H3V300 1 2 1))
BENCHES := $(CPU) $(SIM16) $(B)/bench/roofline $(B)/bench/products $(B)/bench/reading
$(call check,reference,KERNELS=reference trains,$(CPU) gpt2,\
    dev/test/reference_trainer.sh "$(CXX)" "$(CXXFLAGS)" "$(LDLIBS)")
$(call check,slow_build,a slow build says that it is one,$(CPU),dev/test/slow_build.sh)
$(call check,bench_script,the script of the CPU bench,$(BENCHES),dev/test/bench_script.sh)
$(call check,bench_gpu,the script of the GPU bench in the simulator,$(BENCHES),python3 dev/bench_gpu.py --sim)
$(call check,gpu_day,the first minutes on a GPU in the simulator,\
    $(SIM16) $(B)/BF16/test_gpt2sim $(B)/cuda/gelu $(B)/fake_nvml/libnvidia-ml.so.1 $(DATA) build/host/tokenize,\
    dev/test/gpu_day.sh)
$(call check,step_model,predicted times of steps on GPUs,$(SIM16) $(DATA),dev/test/modelled_steps.py $(SIM16))
$(call check,hugging_face,models from and to Hugging Face,$(CPU) $(B)/test_model,\
    dev/test/hugging_face.py --packages || skip "pip install numpy safetensors tiktoken torch transformers";\
    dev/test/hugging_face.py)
$(call check,lora,LoRA beside PEFT and adapters from and to its files,$(CPU),\
    dev/test/lora.py --packages || skip "pip install numpy peft safetensors torch transformers"; dev/test/lora.py)
$(call check,distill,distillation beside PyTorch,$(CPU),\
    dev/test/distill.py --packages || skip "pip install numpy safetensors torch transformers"; dev/test/distill.py)
$(call check,preferences,preference tuning beside PyTorch,$(CPU) prefer,\
    dev/test/preferences.py --packages || skip "pip install numpy safetensors torch transformers";\
    dev/test/preferences.py)
$(call check,course_formats,the kernels have the number formats that the appendix says,$(SIM16) $(DATA),\
    dev/course/formats.py --check $(SIM16))
$(call check,course_contamination,the table of chapter 32 is that of the texts,tokenize,\
    dev/course/contamination.py --check)
$(call check,course_board,the board judges entries and refuses cheats,train_gpt2_cpu tokenize,dev/test/board.py)
$(call check,course_first_kernel,the first program of chapter 13 runs and reports what fails,$(B)/first_kernel,\
    $(B)/first_kernel 257 && CUSIM_MEMORY_MIB=1 $(B)/first_kernel 1000000 2>&1 | grep "out of memory" &&\
    ! $(B)/first_kernel 5x)
$(call check,course_twins,PyTorch computes what the chapters say,\
    $(B)/course_numbers $(B)/course_numbers_gpu part-counts,\
    dev/course/twin.py --packages || skip "pip install numpy torch"; command -v g++ || skip "apt-get install g++";\
    $(MAKE) -s CXX=g++ COUNT=1 build-count/cusim_counts && dev/course/twin.py)
MKDOCS := mkdocs-material==9.8.2
EMSCRIPTEN := emscripten node-acorn
$(call check,course_book,the course as a book: links and size and nothing of the network,,\
    dev/course/book.py --packages || skip "pip install numpy $(MKDOCS)";\
    dev/course/book.py && dev/course/book.py --check && dev/test/book.py links)
$(call check,course_browser,lesson zero in WebAssembly computes what gpt2 does and is a third as fast,,\
    command -v em++ && command -v node || skip "apt-get install $(EMSCRIPTEN)";\
    dev/course/book.py --lesson && dev/test/browser_lesson.py)
$(call check,course_book_shown,the book in a browser: errors and widths and search and training,part-course_book,\
    command -v chromium || skip "apt-get install chromium"; [ -e build/book ] || skip "pip install numpy $(MKDOCS)";\
    dev/test/book.py)
$(call check,course_killed,the killed run of chapter 17 ends as one that nobody killed,$(CPU),\
    dev/test/course_commands.py killed)
$(call check,course_counted,the counts of chapter 14 are those of its table,part-counts,\
    $(MAKE) -s COUNT=1 build-count/cuda/layernorm && dev/test/course_commands.py counted)
$(call check,course_pictures,the pictures of the course show the code that ships,\
    $(B)/course_facts $(B)/course_numbers_gpu,\
    grep -q avx512f /proc/cpuinfo || skip "a CPU with AVX-512"; dev/course/pictures.py --check)
$(call check,vocabularies,the measurement of vocabularies runs,$(CPU),rm -f $(B)/vocabularies.json;\
    dev/course/vocabularies.py 4096 --steps 2 --seconds 0.05 --timed-steps 2 --json $(B)/vocabularies.json)
$(call check,datasets,token files of datasets equal those of llm.c,tokenize,\
    dev/test/datasets.py --packages || skip "pip install numpy pyarrow tiktoken"; dev/test/datasets.py)
$(call check,recipes,fine-tuning and training on FineWeb by the lines of the manual,$(CPU),\
    dev/test/recipes.py --packages || skip "pip install numpy pyarrow safetensors tiktoken torch transformers";\
    dev/test/recipes.py)
$(call check,plot,pictures of runs and of the memory of a step,$(CPU),dev/test/plot.py)
$(call check,sweep,many runs with different flags and the best of them,$(CPU),dev/test/sweep.py)
$(call check,batch_size,steps to a loss by batch size,$(CPU),dev/test/batch_size.py)
$(call check,scaling,losses by size and tokens and what --plan says of them,$(CPU),\
    dev/test/scaling.py --packages || skip "pip install numpy scipy"; dev/test/scaling.py)
$(call check,layouts,which split when: a layout by hand and the tables of the chapter,,dev/test/layouts.py)
$(call check,stale,late gradients and the chapter about them,,\
    dev/test/stale.py --packages || skip "pip install numpy"; dev/test/stale.py)
$(call check,average,averages of weights beside NumPy,$(CPU) $(SIM16),\
    dev/test/average.py --packages || skip "pip install numpy"; dev/test/average.py)
$(call check,prune,pruned weights stay 0 and are those of NumPy,$(CPU) $(SIM16),\
    dev/test/prune.py --packages || skip "pip install numpy"; dev/test/prune.py)
$(call check,prune_torch,the steps of a pruned model beside PyTorch,$(CPU),\
    dev/test/prune.py torch --packages || skip "pip install numpy safetensors torch transformers";\
    dev/test/prune.py torch)
$(call check,plot_packages,event files for TensorBoard and PNG,,\
    dev/test/plot.py packages --packages || skip "pip install cairosvg tensorboard"; dev/test/plot.py packages)
EVALUATION := numpy tiktoken torch transformers
$(call check,weights,whole runs with weights in 8 and 4 bits,$(CPU),dev/test/weights.py)
$(call check,gguf_files,GGUF files beside those of ggml,,\
    dev/test/gguf_files.py --packages || skip "pip install gguf numpy"; dev/test/gguf_files.py)
$(call check,evaluation,perplexity and HellaSwag beside transformers,$(CPU),\
    dev/test/evaluation.py transformers --packages || skip "pip install $(EVALUATION)";\
    dev/test/evaluation.py transformers)
$(call check,lm_eval,perplexity and choices beside lm-eval,$(CPU),\
    dev/test/evaluation.py lm_eval --packages || skip "pip install accelerate lm_eval $(EVALUATION)";\
    dev/test/evaluation.py lm_eval)
$(call check,optimizers,the comparison of the optimizers at a tiny size,$(CPU),dev/test/optimizers.py)
$(call check,launch,a run that dies is started again,train_gpt2_cpu tokenize,dev/test/launch.sh)
$(call check,dist,the source archive builds without git,,\
    git rev-parse --git-dir || skip "git and a checkout"; dev/test/dist.sh "$(MAKE)")
$(call check,fuzz_parsers,ten thousand damaged inputs end the parsers with one sentence,,\
    $(MAKE) -s SANITIZE=address build-address/fuzz_parsers && build-address/fuzz_parsers)
$(call check,fuzz,damaged files end the programs with one sentence,part-fuzz_parsers,\
    $(MAKE) -s SANITIZE=address build-address/train_gpt2_cpu build-address/tokenize && dev/test/fuzz/fuzz.py)
$(call check,compilers,the oldest and the newest compilers that are here,train_gpt2_cpu tokenize,\
    dev/test/portable.sh compilers)
$(call check,apple,the branches for macOS,train_gpt2_cpu tokenize,dev/test/portable.sh apple)
$(foreach l,v2 v3,$(call check,x86_$l,kernels built for x86-64-$l,,dev/test/portable.sh x86 $l))
$(call check,aarch64,kernels and training on ARM in an emulator,train_gpt2_cpu tokenize,dev/test/portable.sh aarch64)
$(call check,many_cores,the same bits on 1 to 64 threads and how evenly work is divided,\
    train_gpt2_cpu tokenize $(B)/bench/pieces,dev/test/many_cores.sh $(B)/bench/pieces)
$(call check,elsewhere,builds from and into other folders,,dev/test/portable.sh elsewhere "$(MAKE)")
$(call check,chaos,runs that are killed and disturbed go on to the same bytes,\
    train_gpt2_cpu build/fail_calls.so,dev/test/chaos/chaos.py)
$(call check,fuzz_import,damaged safetensors files end the import with one sentence,\
    $(CPU) $(if $(wildcard dev/modern),$(SHARED)/host/modern_table),\
    dev/test/fuzz/import.py --packages || skip "pip install numpy safetensors"; dev/test/fuzz/import.py)
$(call check,interrupted,scripts end when interrupted and end what they started,\
    part-bench_script part-bench_gpu,dev/test/interrupted.py)
sim_check = $(call check,$(1),$(2),$(4),env CUSIM_SEED=$(3) $(4) $(5))
$(foreach p,BF16 FP32,$(call sim_check,kernels_$p_seed1,\
    $p kernels with blocks warps and lanes in random order,1,$(B)/$p/test_gpt2sim,kernels))
$(foreach l,$(CUDA_LADDERS),$(call sim_check,ladder_cuda_$l_seed1,\
    the ladder of $l with blocks warps and lanes in random order,1,$(B)/cuda/$l,--check))
$(call sim_check,kernels_small,bf16 kernels on a small multiprocessor,2 CUSIM_CAPABILITY=86 CUSIM_MULTIPROCESSORS=1,\
    $(B)/BF16/test_gpt2sim,kernels)
$(call sim_check,model_seed3,the model in random order,3,$(B)/BF16/test_gpt2sim,cpu)
$(call check,ucontext,the simulator on ucontext,$(SIM_SOURCES),dev/test/ucontext.sh)
$(call check,amx,AMX in an emulator,,bochs --help cpu 2>&1 | grep -q sapphire_rapids && command -v grub-mkrescue ||\
    skip "Bochs 2.8 or newer; dev/test/amx/run.sh says how"; dev/test/amx/run.sh)
$(call check,one_definition,no function of one trainer replaces that of the other in tests,$(SIM_SOURCES),\
    command -v nm || skip "apt-get install binutils"; dev/test/one_definition.py "$(CXX)" $(SHARED))
$(call check,optimized_kernels,the trainer has optimized copies of the functions of its kernels,train_gpt2_cpu,\
    command -v nm || skip "apt-get install binutils";\
    dev/test/optimized_kernels.sh $(B)/compiled_once.o $(B)/train_gpt2_cpu)
$(call check,gdb,gdb stops in a CUDA thread,$(SIM_SOURCES),\
    command -v gdb || skip "apt-get install gdb"; dev/test/gdb.sh)
COPYING := build-count/cuda/attention_forward build-count/cuda/attention_backward
RECOUNTED := build-count/cuda/gelu build-count/cuda/layernorm build-count/cuda/matmul  # quick ones
$(call check,exercises,exercises of the course are handed out and judged,,dev/test/exercises.sh "$(MAKE)")
$(call check,exercises_fast,judges of the exercises on speed,,EXERCISE_TIMES=no $(MAKE) -s prove-fast)
$(call check,counts,the simulator counts what follows on paper and what READMEs say,\
    $(SIM_SOURCES) $(LADDER_SOURCES) $(B)/cusim_seeded_bugs,\
    command -v g++ || skip "apt-get install g++";\
    $(MAKE) -s CXX=g++ COUNT=1 build-count/cusim_counts $(RECOUNTED) &&\
    dev/test/counts.py build-count/cusim_counts build/cusim_seeded_bugs $(RECOUNTED))
$(call check,kernel_work,the work that the model of a step assumes is what the simulator counts,part-counts $(DATA),\
    command -v g++ || skip "apt-get install g++";\
    $(MAKE) -s CXX=g++ COUNT=1 build-count/BF16/train_gpt2sim $(COPYING) &&\
    dev/test/kernel_work.py build-count/BF16/train_gpt2sim && dev/test/replayed_addresses.py $(COPYING))
$(call check,exercises_cuda,judges of the exercises in CUDA,part-counts,\
    command -v g++ || skip "apt-get install g++"; $(MAKE) -s CXX=g++ COUNT=1 prove-cuda &&\
    dev/test/exercises.sh "$(MAKE)" cuda)
$(call check,exercises_solved,solutions pass as files of a reader and are a GPT-2,part-exercises_cuda,\
    command -v g++ || skip "apt-get install g++"; EXERCISE_TIMES=no dev/test/exercises_solved.py "$(MAKE)")
$(call check,exercises_shown,the page of an exercise in CUDA has the numbers of the simulator,part-exercises_cuda,\
    command -v g++ || skip "apt-get install g++"; dev/test/show.py "$(MAKE)")
$(call program,test_hangs,$(B)/test_hangs $(TRAINERS),$(B)/test_hangs)
nvcc_check = $(call check,$(1),$(2),$(B)/cpu_oracle.o $(4),\
    command -v $(NVCC) || skip "install the CUDA toolkit"; $(3))
# One architecture: nvcc_kernels compiles the kernels for the others. The simulator runs the CPU's code, optimised.
$(call nvcc_check,nvcc,nvcc compiles and links the GPU trainer and its tests,\
    $(MAKE) -s DEBUG=1 GPU_ARCH=90a train_gpt2cu test_gpt2cu)
$(call nvcc_check,nvcc_first_kernel,nvcc compiles the first program of chapter 13,\
    $(NVCC) -std=c++17 -arch=sm_80 -I. dev/course/first_kernel.cu -o $(B)/first_kernel_nvcc -ldl)
$(call nvcc_check,nvcc_kernels,no hot kernel has a stack,$(MAKE) -s kernel-table,\
    part-test_gpt2sim_BF16 part-test_gpt2sim_FP32)
$(call nvcc_check,nvcc_fp16,no hot kernel of the fp16 build has a stack,dev/test/fp16_stacks.py $(NVCC))
$(call nvcc_check,nvcc_ladders,nvcc compiles the ladders of dev/cuda,dev/test/nvcc_ladders.sh)
$(foreach s,address thread,$(call check,sanitizer_$s,unit tests and kernels under the $s sanitizer,\
    $(SIM_SOURCES) $(LADDER_SOURCES),dev/test/sanitized.sh $s))

# These begin first, so that nothing has to wait for them at the end: make does so if what they need is there.
LONGEST := part-sanitizer_address part-sanitizer_thread
test-all: $(SIM_SOURCES) $(LADDER_SOURCES)

# By clang, if it has libFuzzer; else dev/test/fuzz/guided.py tries cases at random.
MINUTES ?= 10
FUZZ_CXX ?= $(firstword $(foreach c,clang++ clang++-19 clang++-16 clang++-14,$(shell command -v $c 2>/dev/null)))
build/fuzz/guided: dev/test/fuzz/fuzz_parsers.cpp $(wildcard dev/test/fuzz/*.h llmc/*/*.h dev/data/*.h)
	@mkdir -p $(@D)
	@test -z "$(FUZZ_CXX)" || $(FUZZ_CXX) -std=c++17 -O1 -g1 -march=$(ARCH) -Wall -Wextra -Wno-psabi -pthread -I. \
	    -fsanitize=fuzzer$(comma)address$(comma)undefined -fno-sanitize-recover=all -DGUIDED \
    $< llmc/run/services.cpp -o $@ || \
	    echo "$(FUZZ_CXX) cannot build the fuzzer"
fuzz: build/fuzz/guided               ## MINUTES=10: looks for inputs that break a parser (clang, if it is there)
	@$(MAKE) -s SANITIZE=address build-address/fuzz_parsers
	@dev/test/fuzz/guided.py $(MINUTES)

KILLS ?= 1000
chaos: train_gpt2_cpu build/fail_calls.so  ## KILLS=1000: kills and disturbs tiny runs, resumes them, compares files
	@dev/test/chaos/chaos.py --kills $(KILLS) --cases $$(($(KILLS) / 50 + 1)) $(if $(SEED),--seed $(SEED))

test-compilers: train_gpt2_cpu tokenize   ## trainer and kernels by each g++ >= 12 and clang >= 14 that is installed
	@dev/test/portable.sh compilers all

test-sanitized:                       ## unit tests and kernels under ASan, UBSan and TSan
	@dev/test/sanitized.sh address
	@dev/test/sanitized.sh thread

check-headers: $(SIM_SOURCES)         ## every header compiles alone, and twice
	@dev/test/check_headers.py "$(CXX)" "$(CXXFLAGS)"
