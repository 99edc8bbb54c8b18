"""The extras of the distribution lockstep-mq: which optional dependency belongs to which, and the error of one that is missing."""

DISTRIBUTION = "lockstep-mq"
VERSION = "0.1.0"
"""The version of the distribution, as in pyproject.toml. importlib.metadata has it too, but loads email and zipfile, which a server would
hold until it ends."""
EXTRA_OF = {
    **dict.fromkeys(("typer", "rich", "prometheus_client"), "server"),
    **dict.fromkeys(("pytest", "pytest_asyncio"), "testing"),
    **dict.fromkeys(("pyspark", "pyarrow", "numpy"), "spark"),
    **dict.fromkeys(("starlette", "uvicorn", "jinja2", "babel"), "dashboard"),
    **dict.fromkeys(("cryptography", "tomlkit", "yaml"), "secure"),
    "opentelemetry": "otel",
    "taskiq": "taskiq",
    "h11": "ha",
    "lz4": "lz4",
    "zstandard": "zstd",
}
"""The top-level module of a dependency → the extra that installs it."""


def installation_advice(error: ModuleNotFoundError) -> str | None:
    """Return which command installs the module that could not be imported; None if no extra of lockstep has it."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(module)
    if extra is None:
        return None
    return f"{module} is not installed: it belongs to the extra [{extra}]; run: pip install '{DISTRIBUTION}[{extra}]'"


def with_advice(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return an error that says which command installs the missing module, or the same one if no extra has it."""
    advice = installation_advice(error)
    return error if advice is None else ModuleNotFoundError(advice, name=error.name, path=error.path)
