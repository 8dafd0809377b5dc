"""Makes a small data set in the shape of a real one: a shop's interactions, its items, and embeddings of them.

Popularity falls off as in real shops, users like a few categories and brands and drift between them, baskets share a
timestamp, some events are written twice, and some items have no brand. The same seed makes the same files.

    python examples/make_interactions.py --out shop/
"""

import argparse
import csv
from pathlib import Path

import numpy as np

CATEGORIES = ("lips", "eyes", "nails", "hair", "skin", "bath", "scent", "tools")


def make(out: Path, users: int, items: int, seed: int) -> None:
    """Writes interactions.csv, items.csv and embeddings.npy into `out`."""
    rng = np.random.default_rng(seed)
    out.mkdir(parents=True, exist_ok=True)
    category = rng.integers(0, len(CATEGORIES), items)
    brand = (category * 5 + rng.zipf(1.6, items) % 9) % 30  # a brand sells in one or two categories
    price = np.round(rng.lognormal(2.3, 0.7, items), 2)
    popularity = 1 / (np.arange(items) + 10.0)
    rng.shuffle(popularity)
    keys = [f"{number:010d}" for number in rng.choice(10**9, items, replace=False)]  # with leading zeros, as ASINs have

    with open(out / "items.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["item", "category", "brand", "price"])
        for row in range(items):
            name = "" if rng.random() < 0.03 else f"brand {brand[row]:02d}"
            writer.writerow([keys[row], CATEGORIES[category[row]], name, price[row]])

    # What a text encoder would give: near for one category and brand, with a share of its own for each item.
    of_category, of_brand = rng.standard_normal((len(CATEGORIES), 48)), rng.standard_normal((30, 48))
    vectors = of_category[category] + 0.7 * of_brand[brand] + 0.4 * rng.standard_normal((items, 48))
    np.save(out / "embeddings.npy", vectors.astype(np.float32))

    rows = []
    for user in range(users):
        taste, loyal = rng.choice(len(CATEGORIES), 2, replace=False), rng.integers(0, 30)
        when = int(rng.integers(1_350_000_000, 1_390_000_000))
        wanted = taste[0]
        for _ in range(3 + int(rng.geometric(0.15))):
            wanted = rng.choice(taste) if rng.random() < 0.3 else wanted
            weight = popularity * np.where(category == wanted, 20.0, 1.0) * np.where(brand == loyal, 5.0, 1.0)
            item = rng.choice(items, p=weight / weight.sum())
            when += int(rng.integers(3600, 30 * 86400)) if rng.random() < 0.7 else 0  # else the same basket
            rows += [(f"U{user:05d}", keys[item], when, int(rng.integers(1, 6)))] * (2 if rng.random() < 0.004 else 1)
    order = rng.permutation(len(rows))
    with open(out / "interactions.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "timestamp", "rating"])
        writer.writerows(rows[row] for row in order)
    print(f"{len(rows):,} interactions of {users:,} users with {items:,} items in {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("shop"))
    parser.add_argument("--users", type=int, default=1500)
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    make(given.out, given.users, given.items, given.seed)
