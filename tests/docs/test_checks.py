"""The hook before commits, CI and `.ci/run` check with the same commands."""

from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.docs.pages import ROOT

RUN = (ROOT / ".ci" / "run").read_text()


def test_ci_runs_the_checks_with_actions_of_github_alone() -> None:
    workflow: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    assert all(step["uses"].startswith("actions/") for step in steps if "uses" in step)


def test_hooks_are_local_and_run_what_the_checks_run() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repository["repo"] for repository in config["repos"]} == {"local"}
    for hook in config["repos"][0]["hooks"]:
        assert f"\n{hook['entry']}\n" in RUN
        assert hook["pass_filenames"] is False


def test_the_image_and_the_checks_install_the_pinned_versions() -> None:
    assert "-c constraints.txt" in (ROOT / "Dockerfile").read_text()
    assert "-c deploy/constraints.txt" in RUN
