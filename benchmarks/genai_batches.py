"""Makes several texts at once with OpenVINO GenAI's continuous batching; `at_once.py` asks it.

It runs in an environment that has `openvino-genai`, and reads lines of JSON: lists of prompts as
token ids, and the number of new tokens. It answers each with the seconds and the number of tokens.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Serves until the input ends; arguments are the folder, the threads and the precision."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the library prints, and stdout is for answers
    import numpy as np
    import openvino
    import openvino_genai as genai

    folder, threads, precision = sys.argv[1:]
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.max_num_seqs = 256
    properties = {"INFERENCE_NUM_THREADS": int(threads), "INFERENCE_PRECISION_HINT": precision}
    pipeline: Any = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
    for line in sys.stdin:
        prompts, new_tokens = json.loads(line)
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = new_tokens, True
        tensors = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        begin = time.perf_counter()
        found = pipeline.generate(tensors, [config] * len(tensors))
        seconds = time.perf_counter() - begin
        made = sum(len(each.m_generation_ids[0]) for each in found)
        print(json.dumps([seconds, made]), file=answers, flush=True)


if __name__ == "__main__":
    main()
