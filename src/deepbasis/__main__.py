"""`python -m deepbasis`, and the command `deepbasis`."""

import sys


def main() -> None:
    try:
        from deepbasis.cli import main as command
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "deepbasis":
            raise
        print(f"deepbasis: error: the command needs {error.name}: pip install 'deepbasis[cli,plots]'", file=sys.stderr)
        sys.exit(2)
    command()


if __name__ == "__main__":
    main()
