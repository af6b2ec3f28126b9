"""What was built, tried in an empty environment: `make dist`.

The wheel is installed without PyTorch, and the README's twelve lines are run; then PyTorch is installed, and a
module is planned, too.  Wheel and sdist must hold the licence, the notice and the files that are no code.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
IN_WHEEL = (
    "shardwright/py.typed", "shardwright/cli/models.toml", "shardwright/cost/presets/h100.toml",
    "shardwright/report/page/page.html.j2", "shardwright/report/page/page.css", "shardwright/report/page/page.js",
)  # fmt: skip
LICENCES = ("LICENSE", "NOTICE")
MODULE = """
import torch
import shardwright as sw
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)).double()
x = torch.randn(4, 8, dtype=torch.float64)
plan = sw.plan(model, x, mesh="dp=2, tp=2", recipe="dp")
print(torch.allclose(plan(x), model(x)), plan.certificate is not None)
"""


def contents(folder: Path) -> Path:
    """The one wheel there, after a look into it and the sdist."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in IN_WHEEL if name not in names]
    missing += [name for name in LICENCES if not any(path.endswith(f"licenses/{name}") for path in names)]
    with tarfile.open(sdist) as archive:
        inside = archive.getnames()
    missing += [f"{name} (sdist)" for name in LICENCES if not any(path.endswith(f"/{name}") for path in inside)]
    if missing:
        raise SystemExit(f"the distribution lacks {', '.join(missing)}")
    return wheel


def run(python: Path, *words: str, folder: Path) -> str:
    done = subprocess.run([python, *words], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)[:80]} fails:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    wheel = contents(ROOT / "dist")
    code, expected = re.findall(r"```python\n((?:(?!```).)*)```\s+```text\n(.*?)```", (ROOT / "README.md").read_text(),
                                re.DOTALL)[0]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"
        (folder / "readme.py").write_text(code)
        install = (
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-c",
            str(ROOT / "constraints.txt"),
        )
        for extra in ((), ("torch==2.13.0",)):
            run(python, *install, str(wheel), *extra, folder=folder)
            if run(python, "readme.py", folder=folder) != expected:
                raise SystemExit("the twelve lines print something else")
            print(f"{'with' if extra else 'without'} torch: the twelve lines run; "
                  f"{run(folder / 'venv' / 'bin' / 'shardwright', '--version', folder=folder).strip()}")  # fmt: skip
        if run(python, "-c", MODULE, folder=folder).split() != ["True", "True"]:
            raise SystemExit("the module's plan is not equal")
        print("with torch: a module is planned, proven and run")


if __name__ == "__main__":
    main()
