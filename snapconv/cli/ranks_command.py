"""``snapconv ranks``: the files of a whole job -> which rank differs, and in what."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapconv.cli.arguments import (
    CertainOption,
    ForceOption,
    IncludeOption,
    JsonOption,
    ProjectRootOption,
    QuietOption,
    TopOption,
    output_option,
    parsed,
)
from snapconv.cli.terminal import (
    first_entries,
    print_error,
    print_json,
    print_lines,
    progress_bar,
)
from snapconv.errors import InputError, UnsafePickleError
from snapconv.files import checked_output, default_output
from snapconv.mesh import Mesh
from snapconv.units import counted

if TYPE_CHECKING:
    from snapconv.answers.ranks.job_report import JobReport
    from snapconv.ranks.job import JobProgress


def ranks(
    patterns: Annotated[
        list[str],
        typer.Argument(
            metavar="PATTERN",
            help="Snapshots, captures, folders, globs in quotes, @LIST for a file with "
            "one a line; or URLs of a store (s3://, gs://, hf://, ssh://; pip install "
            "'snapconv[remote]' and the store's package).",
        ),
    ],
    *,
    output: Annotated[
        str | None,
        output_option("Write an SQLite database; a name ending in .html gets a page."),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="AXES",
            help="The job's device mesh, outermost axis first, such as pp=4,dp=8,tp=2. "
            "Default: as recorded.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Let the workers of this Dask scheduler (tcp:// or tls://) read. "
            "Default: this machine's.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Processes on this machine. Default: its processors, if memory suffices.",
            min=1,
        ),
    ] = None,
    reports: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Write each rank's memory report there too, also to a URL.",
        ),
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Read every file anew, and keep nothing.")
    ] = False,
    top: TopOption = None,
    project_root: ProjectRootOption = None,
    include: IncludeOption = None,
    certain: CertainOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare the ranks of a job: which differs, in what and where; `snapconv FOLDER` does it too.

    It also shows which ranks ran out of memory, and what the others had left. A file that cannot be
    read is a row with its error, and the exit code is then 3 or 4. Results are kept: a second run
    reads only files that are new or have changed.
    """
    from snapconv.analysis import AnalysisOptions
    from snapconv.ranks.job import JobOptions, JobStopped, default_cache, read_job

    database = None if output is None else checked_output([], output, "", force=force)
    options = JobOptions(
        mesh=None if mesh is None else parsed(mesh, Mesh.parse, "--mesh"),
        scheduler=scheduler,
        workers=workers,
        cache=None if no_cache else default_cache(),
        reports=reports,
        analysis=AnalysisOptions(project_root, tuple(include or ()), certain=certain),
    )

    def show(report: "JobReport") -> None:
        from snapconv.writers.text.ranks import job_lines

        if as_json:
            print_json(first_entries(report.to_json(), top))
        elif not quiet:
            print_lines(job_lines(report, n_rows=top), sys.stdout)

    try:
        with progress_bar(shown=not quiet) as bar:
            report = read_job(
                patterns, options, progress=_job_progress(bar) if bar else None
            )
    except JobStopped as stopped:
        show(stopped.report)
        _print_stop(stopped.n_left, is_kept=not no_cache and reports is None)
        raise
    _write(report, database, force=force)
    show(report)
    if database is not None and not quiet and not as_json:
        print_lines([f"  written: {database}"], sys.stdout)
    _end_for_errors(report)


def _print_stop(n_left: int, *, is_kept: bool) -> None:
    """Show how many files were not read, and how to read them unless all are read again."""
    what_next = "; type it again to read only these" if is_kept else ""
    print_error(f"stopped: {counted(n_left, 'file')} not read{what_next}")


def _job_progress(bar: "object") -> "JobProgress":
    """Show the files done, the rate and the time left as the text of a progress bar."""

    def show(n_done: int, total: int, n_errors: int, n_seconds: float) -> None:
        rate = n_done / max(n_seconds, 0.001)
        remaining = f"{(total - n_done) / rate:.0f} s left"
        errors = f", {counted(n_errors, 'error')}" if n_errors else ""
        stage = f"{n_done} of {total} files, {rate:.1f} a second, {remaining}{errors}"
        bar(stage, n_done, total)  # type: ignore[operator]

    return show


def _write(report: "JobReport", output: Path | None, *, force: bool) -> None:
    if output is None:
        return
    if output.suffix.lower() in (".html", ".htm"):
        from snapconv.writers.html.ranks_page import write_ranks_page

        write_ranks_page(output, report, pages=_rank_pages(report, output), force=force)
    else:
        from snapconv.writers.sqlite.job_database import write_job_database

        write_job_database(output, report, force=force)


def _rank_pages(report: "JobReport", output: Path) -> dict[str, str]:
    """Find the pages of `snapconv view`, beside a rank's file or beside the job's page."""
    from snapconv.writers.html.page import page_ending
    from snapconv.writers.html.ranks_page import link_to

    pages = {}
    for path in [Path(file.file) for file in report.last_dumps if file.file]:
        name = default_output(path, page_ending([path])).name
        for folder in (path.parent, output.parent):
            if (folder / name).is_file():
                pages[str(path)] = link_to(folder / name, output.parent)
    return pages


def _end_for_errors(report: "JobReport") -> None:
    """End as the worst of the errors does; the answer is printed already."""
    if report.errors:
        advice = ""
        exit_code = InputError.exit_code
        if any(file.exit_code == UnsafePickleError.exit_code for file in report.errors):
            advice = ", and some contain code: do not load them with anything else either"
            exit_code = UnsafePickleError.exit_code
        print_error(f"error: {report.lacking}{advice}")
        raise typer.Exit(exit_code)
