"""`docs/zoo.md` lists every bundled model with its size."""

from pathlib import Path

from predictor.zoo import ZOO

ROOT = Path(__file__).parents[2]


def test_the_page_lists_the_zoo():
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "zoo.md").read_text().splitlines()
        if line.startswith("|")
    ][2:]
    assert {r[0]: int(r[1].replace(",", "")) for r in rows} == {
        name: entry.parameters for name, entry in ZOO.items()
    }
    for name, _, size, _ in rows:
        numbers = [int(n) for n in size.replace("one", "1").split() if n.isdigit()]
        assert numbers[0] == ZOO[name].batch
        if ZOO[name].seq is not None:
            assert ZOO[name].seq in numbers[1:]


def test_the_readme_names_them():
    text = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in text for name in ZOO)
    assert f"{len(ZOO)} [bundled models]" in text


def test_the_readme_leads_to_every_page():
    text = (ROOT / "README.md").read_text().partition("## Where things live")[2]
    pages = [page.name for page in (ROOT / "docs").glob("*.md")]
    assert pages and [name for name in pages if f"(docs/{name})" not in text] == []
