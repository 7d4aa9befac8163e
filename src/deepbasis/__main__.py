"""`python -m deepbasis`, and the command `deepbasis`."""

import sys


def main() -> None:
    try:
        from deepbasis.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "deepbasis":
            raise
        print(f"deepbasis: error: the command needs {error.name}: pip install 'deepbasis[cli,plots]'", file=sys.stderr)
        sys.exit(2)
    app(prog_name="deepbasis")


if __name__ == "__main__":
    main()
