"""Decisions as files for pipelines: JUnit XML, and markdown for a step summary or a comment.

Both are printed from the decision object, as exit code, table and JSON are. Stored names are data: they are escaped.
"""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from evalsvc.decision import Decision, combine_exit_codes, legend
from evalsvc.row import Row, format_p, format_points

MARKDOWN_LIMIT = 65_000  # characters; a comment on GitHub holds 65,536
_ILLEGAL_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_KINDS = {"REGRESSED": "failure", "INVALID": "error", "INCONCLUSIVE": "skipped"}
_MARKS = {"PASS": "✅", "REGRESSED": "❌", "INCONCLUSIVE": "❔", "INVALID": "⛔"}


def to_junit(decisions: Sequence[Decision]) -> str:
    """JUnit XML: a suite a candidate, a case for the release, each row that carries a verdict, and each limit.

    REGRESSED is a failure and INVALID an error. An INCONCLUSIVE release is a failure unless the policy accepts it; an
    INCONCLUSIVE row beside it is skipped, since a listed guard does not block.
    """
    root = ElementTree.Element("testsuites", name="evalsvc")
    for decision in decisions:
        suite = ElementTree.SubElement(root, "testsuite", name=_xml(decision.candidate.address))
        release = _case(suite, decision, "release", decision.sentence)
        if decision.exit_code:
            kind = "error" if decision.verdict == "INVALID" else "failure"
            _outcome(release, kind, decision.verdict, "\n".join((decision.sentence, *decision.reasons)))
        for row in decision.rows:
            if row.verdict is not None:
                case = _case(suite, decision, row.label, _sentence(row, decision))
                kind = _KINDS.get(row.verdict)
                if row.blind:
                    kind = "skipped"  # left out of the decision
                if kind:
                    _outcome(case, kind, row.verdict, _sentence(row, decision))
        for limit in decision.limits:
            case = _case(suite, decision, limit.label, limit.in_words)
            if limit.word in _KINDS:
                _outcome(case, _KINDS[limit.word], limit.word, limit.in_words)
        for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            suite.set(name, str(sum(case.find(kind) is not None for case in suite)))
        suite.set("tests", str(len(suite)))
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, decision: Decision, name: str, said: str) -> ElementTree.Element:
    case = ElementTree.SubElement(suite, "testcase", classname=_xml(decision.candidate.address), name=_xml(name))
    ElementTree.SubElement(case, "system-out").text = _xml(said)
    return case


def _outcome(case: ElementTree.Element, kind: str, word: str, text: str) -> None:
    outcome = ElementTree.Element(kind, type=word, message=_xml(text.partition("\n")[0]))
    outcome.text = _xml(text)
    case.insert(0, outcome)


def _sentence(row: Row, decision: Decision) -> str:
    remark = f" ({row.remark})" if row.remark else ""
    return f"{row.verdict}{remark}: {row.label}: {row.numbers(decision.alpha)}"


def _xml(text: str) -> str:
    """Text without the characters that no XML document may hold."""
    return _ILLEGAL_XML.sub("\ufffd", text)


def to_markdown(decisions: Sequence[Decision], limit: int = MARKDOWN_LIMIT) -> str:
    """Markdown with the verdict of each candidate and a table of its rows.

    Args:
        decisions: In the order to show.
        limit: Most characters. What does not fit is left out from the end, and the last line says so.
    """
    code = combine_exit_codes(decision.exit_code for decision in decisions)
    blocks = [f"### evalsvc gate: exit code {code}\n"]
    for decision in decisions:
        name = _markdown(decision.candidate.address) + (" [injected]" if decision.candidate.injected else "")
        blocks.append(
            f"\n#### {_MARKS[decision.verdict]} {decision.verdict}: {name} against "
            f"{_markdown(decision.baseline.address)}\n\n{_markdown(decision.sentence)}\n"
        )
        lines = [
            "\n| | verdict | lost | gained | items | drop | p | bound | margin |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|",
            *(_line(row) for row in decision.rows if row.verdict is not None),
        ]
        blocks.append("\n".join(lines) + "\n")
        said = decision.beside_the_sentence
        if said:
            blocks.append("\n" + "\n".join(f"- {_markdown(line)}" for line in said) + "\n")
        blocks.append(
            f"\nplan `{decision.candidate.plan}`, fingerprint `{decision.candidate.fingerprint[:12]}` against "
            f"`{decision.baseline.fingerprint[:12]}`, experiment `{decision.candidate.experiment_hash[:12]}`, policy "
            f"`{decision.policy_sha256[:12]}`; {_discordance(decision)}\n"
        )
    blocks.append(f"\n{legend(decisions)}\n")
    return _within(blocks, limit)


def _discordance(decision: Decision) -> str:
    """How many items flipped, beside how many do where nothing differs."""
    flipped = decision.rows[0].discordance if decision.rows else None
    ours = "unknown" if flipped is None else f"{format_points(flipped)} points"
    aa = "no A/A was run"
    if decision.aa is not None:
        found = decision.aa.discordance
        aa = "no item of the A/A can be counted" if found is None else f"A/A {format_points(found)}"
    return f"discordance {ours} ({aa})"


def _within(blocks: Sequence[str], limit: int) -> str:
    whole = "".join(blocks)
    if len(whole) <= limit:
        return whole
    note = "\n(cut: {} of {} parts left out; the JSON has all)\n"
    room = limit - len(note) - 12
    kept: list[str] = []
    for block in blocks:
        if len(block) > room:
            break
        kept.append(block)
        room -= len(block)
    return "".join(kept) + note.format(len(blocks) - len(kept), len(blocks))


def _line(row: Row) -> str:
    name = "**pooled**" if row.scope == "pooled" else _markdown(row.label.removeprefix("suite "))
    cells = [
        name,
        f"{row.verdict or ''}{f' ({_markdown(row.remark)})' if row.remark else ''}",
        f"{row.lost:,}",
        f"{row.gained:,}",
        f"{row.n:,}",
        row.amount(row.drop),
        "" if row.short_p is None else _markdown(format_p(row.short_p)),
        row.amount(row.upper),
        row.limit,
    ]
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    """One line of text in which nothing is markup, a link, a mention or HTML."""
    flat = " ".join(_xml(text).split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = re.sub(r"([\\`*_{}\[\]()#+!|~])", r"\\\1", flat)
    return re.sub(r"@(?=\w)", "@\u200b", escaped)
