#!/usr/bin/env python3
"""Evaluates a model with EleutherAI's lm-eval: exports it for transformers (dev/data/export_hf.py), then runs lm-eval.

    pip install accelerate lm_eval numpy torch transformers
    make train_gpt2_cpu && python3 dev/eval_lm.py log124M
    python3 dev/eval_lm.py gpt2.bin --tasks piqa,winogrande --limit 100

The model is a model file or a run's folder. All flags but the two below go to lm-eval (lm_eval run --help). Tasks
without --tasks: {tasks}. lm-eval downloads their data from the Hugging Face hub.
"""
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parent / "data")]
import children  # noqa: E402

children.need("accelerate", "lm_eval", "numpy", "torch", "transformers")
import argparse  # noqa: E402
import shlex  # noqa: E402
import subprocess  # noqa: E402

from files import wrong_use  # noqa: E402

TASKS = "hellaswag,lambada_openai,wikitext,arc_easy,piqa,winogrande"
EXPORT = pathlib.Path(__file__).resolve().parent / "data/export_hf.py"


def export(options, folder):
    tokenizer = ["--tokenizer", options.tokenizer] if options.tokenizer else []
    print(children.run([sys.executable, EXPORT, options.model, folder, *tokenizer])[0], end="", flush=True)
    if not (folder / "tokenizer_config.json").is_file():
        sys.exit(f"lm-eval needs the tokenizer of {options.model}: --tokenizer FILE names it")


def main():
    parser = argparse.ArgumentParser(description=__doc__.format(tasks=TASKS), allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = wrong_use
    parser.add_argument("model", type=pathlib.Path, help="a model file, or the out dir of a run")
    parser.add_argument("--export", metavar="FOLDER", type=pathlib.Path, help="where the export goes (MODEL-hf)")
    parser.add_argument("--tokenizer", metavar="FILE", help="the tokenizer file of the model, as for export_hf.py")
    options, others = parser.parse_known_args()
    folder = options.export or options.model.with_name(options.model.name.removesuffix(".bin") + "-hf")
    export(options, folder)
    given = {flag.partition("=")[0] for flag in others}
    if not given & {"--tasks", "-t"}:
        others += ["--tasks", TASKS]
    if not given & {"--batch_size", "-b"}:
        others += ["--batch_size", "8"]
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--model_args", f"pretrained={folder}", *others]
    print(shlex.join(command), flush=True)
    process = subprocess.Popen(command, start_new_session=True)  # what it prints appears as it comes
    children.running.add(process)
    sys.exit(process.wait())


if __name__ == "__main__":
    main()
