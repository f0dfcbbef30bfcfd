"""Small data in the benchmark's form, and their files."""

import numpy as np

from datasets.dlrmv3.generator import Settings
from datasets.dlrmv3.users import to_line

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


def present_in(settings, users, time):
    """Users of a period's requests: behind the base, and behind the evaluation in the inference."""
    place = time + 1 if time < settings.num_training else time + 2
    return [number for number, user in users.items() if user.periods[place] is not None]


def quoted(numbers):
    """A line with a list in its one field."""
    return '"' + ",".join(map(str, numbers)) + '"\r\n'


def write_folder(folder, settings, users):
    """The benchmark's files of all users, who are given by their numbers."""
    size, places = settings.users_per_file, []
    for file in range(settings.num_files):
        lines = [to_line(users[number]) for number in range(size * file, size * file + size)]
        (folder / f"{file}.csv").write_bytes("".join(lines).encode())
        places.append(quoted(np.cumsum([0, *map(len, lines[:-1])]).tolist()))
    (folder / "offset.csv").write_bytes("".join(places).encode())
    requests = [quoted(present_in(settings, users, time)) for time in range(settings.num_timestamps)]
    (folder / "requests_per_ts.csv").write_bytes("".join(requests).encode())
    places = quoted(np.cumsum([0, *map(len, requests[:-1])]).tolist())
    (folder / "requests_per_ts_offset.csv").write_bytes(places.encode())
