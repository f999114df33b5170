"""User code and the examples pass pyright; tests/static/test_checks.py runs mypy on them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"


def test_pyright_in_strict_mode(tmp_path: Path) -> None:
    """basedpyright, which is pyright in a wheel, accepts the code in pyright's strict mode."""
    settings = {
        "include": [str(ROOT / "tests/typing/user_code.py"), str(EXAMPLES)],
        "extraPaths": [str(ROOT), str(EXAMPLES), str(EXAMPLES / "judge")],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
    }
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    command = ["-m", "basedpyright", "--project", str(project), "--pythonpath", sys.executable]
    ended = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
