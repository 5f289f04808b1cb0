"""Two processes that ``torchrun`` starts train what one does with the double batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lavagna.cli.app import main
from lavagna.models import LanguageModel
from lavagna.training import read_metrics
from lavagna.training.metrics import TIMES
from tests.conftest import ROOT
from tests.training.support import untimed, write_texts

#: what the runs of two processes and of one have in common
COMMON = {
    "steps": 20,
    "context": 16,
    "learning_rate": 1e-2,
    "dtype": "float64",
    "evaluate_every": 0,
    "evaluate_tokens": 100,
    "validation_fraction": 0.2,
}
VARIANTS = {"plain": {}, "carried": {"carry_state": True}, "accumulated": {"accumulate": 2}}


def arguments(text: Path, out: Path, batch_size: int, variant: dict[str, object]) -> list[str]:
    keys = {**COMMON, **variant, "batch_size": batch_size}
    sets = [part for key, value in keys.items() for part in ("--set", f"training.{key}={json.dumps(value)}")]
    options = ["--preset", "gated_deltanet+attention-nano", "--set", "model.width=16", "--no-tensorboard"]
    return ["train", str(text), *options, *sets, "--out", str(out)]


#: Runs the commands one after the other in each process, which joins the other once. The last but one is stopped by
#: a signal that rank 1 gets.
SCRIPT = """
import json, os, signal, sys
from contextlib import nullcontext

import torch
from lavagna import training
from lavagna.cli.app import main
from lavagna.data import StreamBatches

at = StreamBatches.at

def signalled(batches, step):
    if step == 7 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    return at(batches, step)

commands = json.loads(sys.argv[1])
with training.join_world(torch.device("cpu")) as world:
    training.join_world = lambda device: nullcontext(world)
    for number, command in enumerate(commands):
        cut = number == len(commands) - 2
        StreamBatches.at = signalled if cut else at
        try:
            main(command)
        except SystemExit as left:
            assert (left.code or 0) == (143 if cut else 0), (command, left.code)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with each variant trained by two processes, and one stopped and resumed; and what was printed."""
    folder = tmp_path_factory.mktemp("parallel")
    text = write_texts(folder / "texts")
    commands = [arguments(text, folder / f"two-{name}", 2, keys) for name, keys in VARIANTS.items()]
    cut = arguments(text, folder / "two-cut", 2, VARIANTS["carried"])
    commands += [cut, [*cut, "--resume"]]
    (folder / "script.py").write_text(SCRIPT)
    process = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"),
            *(str(folder / "script.py"), json.dumps(commands)),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return folder, process.stdout


@pytest.mark.parametrize("name", VARIANTS)
def test_two_processes_are_one_with_the_double_batch(trained: tuple[Path, str], name: str) -> None:
    folder, _ = trained
    with pytest.raises(SystemExit) as left:
        main(arguments(folder / "texts", folder / f"one-{name}", 4, VARIANTS[name]))
    assert not left.value.code
    two, one = read_metrics(folder / f"two-{name}"), read_metrics(folder / f"one-{name}")
    assert [line["step"] for line in two] == [*range(1, 21), 20]
    for a, b in zip(two, one, strict=True):
        for key in a.keys() - set(TIMES):
            assert a[key] == pytest.approx(b[key], rel=1e-6), (a["step"], key)
    weights = [LanguageModel.load(folder / f"{n}-{name}" / "model").state_dict() for n in ("two", "one")]
    for parameter, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][parameter], rtol=1e-6, atol=1e-9)


def test_a_signal_to_one_process_stops_both_and_each_goes_on_with_its_own_state(trained: tuple[Path, str]) -> None:
    folder, printed = trained
    assert printed.count("stopped by SIGTERM after step 8 of 20; saved in") == 1
    assert untimed(folder / "two-cut") == untimed(folder / "two-carried")


def test_only_the_process_that_leads_prints(trained: tuple[Path, str]) -> None:
    assert trained[1].count("bits per byte on held-out data after 20 steps") == len(VARIANTS) + 1
