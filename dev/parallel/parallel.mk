# The programs of dev/parallel, and what checks them.

.PHONY: parallel
PARALLEL_PROGRAMS := $(addprefix $(B)/,pipeline tensor context experts together test_schedules test_experts)
LESS_OPTIMIZED += $(notdir $(PARALLEL_PROGRAMS))
$(PARALLEL_PROGRAMS): $(B)/%: dev/parallel/%.cpp $(FLAGS_FILE)
	$(compile)
build/parallel/bytes_train.bin: $(TEXTS) | $(TOKENIZER)
	@mkdir -p $(@D)
	$(TOKENIZER) --bytes 1 $(TEXTS) --val-split tail -o build/parallel/bytes
PARALLEL := $(PARALLEL_PROGRAMS) build/parallel/bytes_train.bin train_gpt2_cpu
parallel: $(PARALLEL)                 ## models split among processes, checked (dev/parallel)
	@$(B)/test_schedules && $(B)/test_experts && dev/parallel/check_pipeline.py && dev/parallel/check_tensor.py && \
	    dev/parallel/check_context.py && dev/parallel/check_experts.py && dev/parallel/check_together.py
# Parts of `make test-all`.
$(call program,schedules,$(B)/test_schedules,$(B)/test_schedules)
$(call program,experts,$(B)/test_experts,$(B)/test_experts)
$(call check,parallel,models split among processes train as in one,$(PARALLEL),dev/parallel/check_pipeline.py)
$(call check,tensor,layers split among processes train as in one,$(PARALLEL),dev/parallel/check_tensor.py)
$(call check,context,a sequence divided among processes trains as in one,$(PARALLEL),dev/parallel/check_context.py)
$(call check,mixture,experts divided among processes train as in one,$(PARALLEL),dev/parallel/check_experts.py)
$(call check,together,a mesh of replicas and stages and parts trains as one process,$(PARALLEL),\
    dev/parallel/check_together.py)
