"""Whether the version is the tag's. It is written once, in the package, so that a checkout without Git has one too."""

import subprocess
import sys

import deepbasis


def main() -> None:
    git = ["git", "tag", "--points-at", "HEAD", "v*"]
    tags = subprocess.run(git, capture_output=True, text=True, check=False).stdout.split()
    if not tags:
        print(f"this commit has no tag: to release it, git tag v{deepbasis.__version__}")
    elif tags != [f"v{deepbasis.__version__}"]:
        sys.exit(f"the package is version {deepbasis.__version__}, and this commit is tagged {', '.join(tags)}")


if __name__ == "__main__":
    main()
