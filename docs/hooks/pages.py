"""What MkDocs does not do by itself: pages that live elsewhere in the tree, and equations without a script.

* Every page of ``experiments/`` is a page of the site, where it lies; so are the files that pages link to.
* Links are written as on the tree (``../experiments/README.md``) and lead to the site's pages.
* ``assumptions.md`` is made of the configs' docstrings and the tables' ``ASSUMED``.
* ``$...$`` and ``$$...$$`` become MathML.
* Tables of options and metrics are marked, for the style sheet.
* Code in text and tables breaks between its words (after `_ . / = , (`), names and options never within.
* A page that asks another host for a script, style, font or image is a warning, which ``--strict`` refuses.
"""

import ast
import logging
import pathlib
import posixpath
import re
import sys

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {"assumptions.md"}
NAMED = {"options.md", "metrics.md"}  # their tables are of names, see assets/site.css
LINK = re.compile(r"(!?\[[^\]]*\]\()(?!https?:|mailto:|#|\.?/?$)([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
REMOTE = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//|<link\b(?![^>]*canonical)[^>]*//"
)

CODE = re.compile(r"(<pre\b.*?</pre>)|<code>([^<]*)</code>", re.DOTALL)  # of text, not of blocks
WORD = re.compile(r"[^\s<>]{18,}")  # what is shorter does not break
OPTION = re.compile(r"(?<![^\s>])(--?[A-Za-z][\w-]*)")

log = logging.getLogger("mkdocs.hooks.pages")


def pages() -> list[str]:
    """Return the pages of the site by their path in the tree, generated ones aside."""
    own = [path for path in DOCS.rglob("*.md") if "hooks" not in path.parts]
    return sorted(str(p.relative_to(ROOT)) for p in [*own, *(ROOT / "experiments").rglob("*.md")])


def targets(page: str, text: str) -> dict[str, str]:
    """Return every link of a page of the tree: as it is written -> the path in the tree that it leads to."""
    text = FENCE.sub("", text)
    return {
        found[2]: posixpath.normpath(posixpath.join(posixpath.dirname(page), found[2]))
        for found in LINK.finditer(text)
    }


def site_uri(path: str) -> str:
    """Turn a path in the tree into the path on the site."""
    return path.removeprefix("docs/")


def in_tree(uri: str) -> str:
    """Turn a path on the site into the path in the tree."""
    return uri if uri.startswith("experiments/") else f"docs/{uri}"


# ------------------------------------------------------------------------------------------ MkDocs' events


def on_files(files, config):
    """Add pages and files that lie outside of docs/."""
    from mkdocs.structure.files import File

    wanted = set()
    for page in pages():
        wanted |= {page, *targets(page, (ROOT / page).read_text()).values()}
    for path in sorted(wanted):
        if not path.startswith("docs/") and (ROOT / path).is_file():
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "assumptions.md", content=assumptions()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Write links of the tree as links of the site."""
    uri = page.file.src_uri
    found = targets(in_tree(uri), markdown)

    def relink(match):
        target = found.get(match[2])
        if target is None or files.get_file_from_path(site_uri(target)) is None:
            return match[0]  # MkDocs says that it leads nowhere
        link = posixpath.relpath(site_uri(target), posixpath.dirname(uri) or ".")
        return f"{match[1]}{link}{match[3] or ''}{match[4]}"

    return LINK.sub(relink, markdown).replace("<details>", '<details markdown="1">')


def on_page_content(html, page, config, files):
    """Write equations as MathML; mark where code may break; put tables of names in a division of their own."""
    from html import unescape

    from latex2mathml.converter import convert

    def equation(match):
        display = "block" if match[1] == "div" else "inline"
        return convert(unescape(match[2]), display=display)

    html = re.sub(r'<(div|span) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', equation, html, flags=re.DOTALL)
    html = CODE.sub(breakable, html)
    return f'<div class="named">{html}</div>' if page.file.src_uri in NAMED else html


def breakable(found):
    """Mark where a piece of code may break, and the names of options, which may not."""
    block, words = found[1], found[2]
    if block:
        return OPTION.sub(r'<span class="whole">\1</span>', block)
    words = OPTION.sub(r'<span class="whole">\1</span>', words)
    parts = re.split(r"(<[^>]*>)", words)  # tags are left alone
    parts[::2] = [
        WORD.sub(lambda word: re.sub(r"(?<=[_./=,(])(?=\w)", "<wbr>", word[0]), part) for part in parts[::2]
    ]
    return f"<code>{''.join(parts)}</code>"


def on_post_page(output, page, config):
    """Warn where something is asked of another host."""
    for tag in REMOTE.findall(output):
        log.warning("%s asks another host: %s", page.file.src_uri, tag)
    return output


# --------------------------------------------------------------------------------------------- assumptions


def assumed_by_configs() -> dict[str, tuple[str, str]]:
    """Return config's name -> (first line of its docstring, what it says is assumed)."""
    found = {}
    for path in sorted((ROOT / "configs").glob("*.py")):
        about = ast.get_docstring(ast.parse(path.read_text())) or ""
        assumed = re.search(r"^Assumed: (.*?)(?:\n\n|\Z)", about, re.MULTILINE | re.DOTALL)
        if assumed:
            found[path.stem] = (about.splitlines()[0], " ".join(assumed[1].split()))
    return found


def assumed_by_tables() -> dict[str, dict[tuple[str, str], list[str]]]:
    """Return paper's folder -> (what, our choice and its source) -> the tables that assume it."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from experiments.harness import all_tables, table_of

    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for name in all_tables():
        _, paper, table = name.split(".")
        for what, choice in table_of(name).assumed.items():
            found.setdefault(paper, {}).setdefault((what, choice), []).append(table)
    return found


def assumptions() -> str:
    """Write the ledger of everything that the papers do not print and we chose."""
    lines = [
        "# Assumptions",
        "",
        "What the papers do not print, our choice, and where it is from: of the configs (`configs/*.py`, their",
        "docstrings) and of the tables (`assumed` of `experiments/<paper>/*.py`). This page is made of both.",
        "",
        "## Configs",
        "",
    ]
    for name, (title, text) in assumed_by_configs().items():
        lines += [f"### `{name}`", "", title, "", text, ""]
    for paper, entries in assumed_by_tables().items():
        lines += [
            f"## Tables of `{paper}`",
            "",
            "| what | our choice, and its source | tables |",
            "| --- | --- | --- |",
        ]
        for (what, choice), tables in entries.items():
            cell = " | ".join(part.replace("|", "\\|") for part in (what, choice, ", ".join(tables)))
            lines.append(f"| {cell} |")
        lines.append("")
    return "\n".join(lines)
