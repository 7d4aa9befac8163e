"""Print how large and how deep the package is: python tests/house_numbers.py [folder of the package, ...]"""

import sys
from pathlib import Path

from support.house import House

PAPER = ("paper", "datasets", "experiments")


def print_numbers(package: Path) -> None:
    house = House(package)
    product = {name: lines for name, lines in house.lengths().items() if name.partition(".")[0] not in PAPER}
    longest, chain, depths = max(product, key=product.__getitem__), house.longest_chain(), house.class_depths()
    deepest = max(depths, key=depths.__getitem__)
    print(package)
    print(f"  lines without the paper: {sum(product.values()):,} in {len(product)} files")
    print(f"  longest file: {longest}, {product[longest]} lines")
    print(f"  longest import chain: {len(chain)}: {' > '.join(chain)}")
    print(f"  class depth: {depths[deepest]} ({deepest})")


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent / "src" / "deepbasis"
    for folder in [Path(word) for word in sys.argv[1:]] or [here]:
        print_numbers(folder)
