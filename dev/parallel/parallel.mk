# The programs of dev/parallel, and what checks them.

.PHONY: parallel
PARALLEL := $(B)/pipeline
$(PARALLEL): $(B)/%: dev/parallel/%.cpp $(FLAGS_FILE)
	$(compile)
build/parallel/bytes_train.bin: $(TEXTS) | $(TOKENIZER)
	@mkdir -p $(@D)
	$(TOKENIZER) --bytes 1 $(TEXTS) --val-split tail -o build/parallel/bytes
parallel: $(PARALLEL) build/parallel/bytes_train.bin train_gpt2_cpu   ## models split among processes, checked (dev/parallel)
	@python3 dev/parallel/check.py
