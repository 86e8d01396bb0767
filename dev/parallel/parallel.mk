# The programs of dev/parallel, and what checks them.

.PHONY: parallel
$(B)/pipeline $(B)/context $(B)/test_schedules: $(B)/%: dev/parallel/%.cpp $(FLAGS_FILE)
	$(compile)
build/parallel/bytes_train.bin: $(TEXTS) | $(TOKENIZER)
	@mkdir -p $(@D)
	$(TOKENIZER) --bytes 1 $(TEXTS) --val-split tail -o build/parallel/bytes
PARALLEL := $(B)/pipeline $(B)/context $(B)/test_schedules build/parallel/bytes_train.bin train_gpt2_cpu
parallel: $(PARALLEL)                 ## models split among processes, checked (dev/parallel)
	@$(B)/test_schedules && dev/parallel/check.py && dev/parallel/check_context.py
# Parts of `make test-all`.
$(call program,schedules,$(B)/test_schedules,$(B)/test_schedules)
$(call check,parallel,models split among processes train as in one,$(PARALLEL),dev/parallel/check.py)
$(call check,context,a sequence divided among processes trains as in one,$(PARALLEL),dev/parallel/check_context.py)
