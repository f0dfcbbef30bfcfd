"""Settings of small data in the benchmark's form."""

from datasets.dlrmv3.generator import Settings

SMALL = Settings(
    num_users=240,
    num_items=96_000,
    num_categories=16,
    num_files=3,
    num_timestamps=10,
    num_training=9,
    avg_samples_per_item=1,
    num_eval_candidates=8,
    num_inference_candidates=128,
)
