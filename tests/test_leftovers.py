"""The plugin that holds a test run to leaving nothing behind, tried on small runs of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def run_pytest(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_small.py").write_text(test)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.leftovers", "-p", "no:cacheprovider", "-p", "no:django", "-p", "no:xdist", "--rootdir", folder,
         "-c", "/dev/null", folder / "test_small.py"], env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_run_that_leaves_a_process_fails_and_the_process_is_ended(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "import subprocess\ndef test_it():\n    subprocess.Popen(['sleep', '300'], start_new_session=True)\n")
    assert done.returncode == 1
    assert "1 passed, 1 error" in done.stdout
    pid = int(done.stdout.split("process ")[1].split(":")[0])
    assert not Path(f"/proc/{pid}/exe").exists()


def test_a_clean_run_passes_and_its_temporary_folder_is_gone(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "import tempfile\ndef test_it():\n    print('FOLDER', tempfile.gettempdir())\n    assert 0\n")
    folder = Path(done.stdout.split("FOLDER ")[1].split()[0])
    assert "rht-" in folder.name
    assert not folder.exists()
