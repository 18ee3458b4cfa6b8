"""Cards: what they must say, that they fit the data, and what keeps data from being trained on."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from surefoot.data.cards import as_yaml, card_of, card_path, check_cards, read_card, renewed, template
from surefoot.errors import ConfigError, DataError
from surefoot.training.lineage import describe_input, digest_data_folder

FIELDS: dict[str, Any] = {
    "name": "films",
    "version": "1.10",
    "owner": "reviews team",
    "source": "a package",
    "annotation_source": "critics",
    "privacy": "public",
    "licence": "Apache-2.0",
    "approval": {"status": "approved", "by": "jo", "date": "2026-11-30"},
    "created": "2026-11-30",
}


def data(path: Path, text: str = '{"prompt": "a"}\n') -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def with_card(path: Path, **changes: Any) -> Path:
    """Write the card of some data; a field that is None is left out."""
    digest = digest_data_folder(path)["sha256"] if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
    fields = {**FIELDS, "sha256": digest, **changes}
    kept = {name: value for name, value in fields.items() if value is not None}
    card_path(path).write_text(yaml.safe_dump(kept), encoding="utf-8")
    return path


def test_a_card_is_read_back_as_written(tmp_path: Path) -> None:
    file = with_card(data(tmp_path / "p.jsonl"))
    card = card_of(file)
    assert card is not None
    assert (card.version, card.created, card.approval.by, card.needs) == ("1.10", datetime.date(2026, 11, 30), "jo", [])
    card_path(file).write_text(as_yaml(card), encoding="utf-8")
    assert card_of(file) == card


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"owner": ""}, "owner: is empty"),
        ({"licence": None}, "licence: Field required"),
        ({"version": 1.10}, 'version: is the number 1.1, and 1.10 would be 1.1: put it in quotes, as "1.1"'),
        ({"version": "1/2"}, "version: is empty or not of the right form"),
        ({"name": "../up"}, "name: "),
        ({"privacy": "secret"}, "privacy: must be 'public', 'internal', 'restricted' or 'personal'"),
        ({"approval": {"status": "approved"}}, "approval: approved needs `by` (who) and `date` (when)"),
        ({"approval": {"status": "rejected", "by": " "}}, "approval: rejected needs"),
        ({"approval": "yes"}, "approval: "),
        ({"created": "yesterday"}, "created: "),
        ({"sha256": "123"}, "sha256: "),
        ({"colour": "red"}, "colour: unknown field"),
    ],
)
def test_a_wrong_card_names_the_field(changes: dict[str, Any], fault: str, tmp_path: Path) -> None:
    file = with_card(data(tmp_path / "p.jsonl"), **changes)
    with pytest.raises(DataError) as error:
        card_of(file)
    assert fault in error.value.what
    assert "p.jsonl.card.yaml" in error.value.what
    assert error.value.hint


@pytest.mark.parametrize("text", ["owner: [", "- a list", "", "owner: a\nowner: b\n"])
def test_what_is_no_card_is_refused(text: str, tmp_path: Path) -> None:
    file = data(tmp_path / "p.jsonl")
    card_path(file).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="card"):
        card_of(file)


def test_a_card_of_other_data_is_refused(tmp_path: Path) -> None:
    file = with_card(data(tmp_path / "p.jsonl"))
    data(file, '{"prompt": "b"}\n')
    with pytest.raises(DataError, match="changed after its card was written"):
        card_of(file)
    folder = tmp_path / "many"
    data(folder / "x" / "a.jsonl")
    with_card(folder)
    assert card_of(folder) is not None
    (folder / "x" / "a.jsonl").rename(folder / "b.jsonl")
    with pytest.raises(DataError, match="changed"):
        card_of(folder)


def test_a_template_has_the_digest_and_must_be_filled_in(tmp_path: Path) -> None:
    file = data(tmp_path / "my prompts.v2.jsonl")
    card_path(file).write_text(template(file, today=datetime.date(2026, 11, 30)), encoding="utf-8")
    tree = yaml.safe_load(card_path(file).read_text(encoding="utf-8"))
    assert tree["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.raises(DataError, match=r"name: .*owner: .*source: .*annotation_source: .*licence: "):
        card_of(file)
    filled = {**tree, **{k: FIELDS[k] for k in ("name", "owner", "source", "annotation_source", "licence")}}
    card_path(file).write_text(yaml.safe_dump(filled), encoding="utf-8")
    card = card_of(file)
    assert card is not None
    assert card.needs == ["pending", "restricted"]


def test_a_renewed_card_has_lost_its_approval(tmp_path: Path) -> None:
    file = with_card(data(tmp_path / "p.jsonl"))
    data(file, '{"prompt": "b"}\n')
    card = renewed(read_card(card_path(file)), file)
    card_path(file).write_text(as_yaml(card), encoding="utf-8")
    assert card_of(file) == card
    assert card.needs == ["pending"]


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({}, []),
        ({"privacy": "internal"}, []),
        ({"privacy": "restricted"}, ["restricted"]),
        ({"privacy": "personal"}, ["personal"]),
        ({"approval": {"status": "pending"}}, ["pending"]),
        (
            {"approval": {**FIELDS["approval"], "status": "rejected"}, "privacy": "restricted"},
            ["rejected", "restricted"],
        ),
    ],
)
def test_data_that_is_not_released_is_refused_unless_allowed(
    changes: dict[str, Any], needs: list[str], tmp_path: Path
) -> None:
    file = str(with_card(data(tmp_path / "p.jsonl"), **changes))
    assert [card.name for card in check_cards([file, None, file, "org/hub"], needs)] == ["films"]
    for missing in needs:
        with pytest.raises(ConfigError) as error:
            check_cards([file], [need for need in needs if need != missing])
        assert f"p.jsonl (films 1.10): {missing}" in str(error.value)
        assert f"data.allow: [{missing}]" in (error.value.hint or "")


def test_a_card_can_be_required(tmp_path: Path) -> None:
    bare, carded = str(data(tmp_path / "a.jsonl")), str(with_card(data(tmp_path / "b.jsonl")))
    assert check_cards([bare, "org/hub"]) == []
    assert len(check_cards([carded], require=True)) == 1
    with pytest.raises(ConfigError, match=r"without a card; got: .*a\.jsonl, org/hub"):
        check_cards([carded, bare, "org/hub"], require=True)


def test_no_way_around_a_card(tmp_path: Path) -> None:
    """A file's card holds for the folder it lies in, a folder's for the files in it, and through links."""
    inner = with_card(data(tmp_path / "all" / "part" / "a.jsonl"), privacy="restricted")
    with pytest.raises(ConfigError, match="restricted"):
        check_cards([str(tmp_path / "all")])
    link = tmp_path / "innocent.jsonl"
    link.symlink_to(inner)
    with pytest.raises(ConfigError, match="restricted"):
        check_cards([str(link)])
    card_path(inner).unlink()
    assert check_cards([str(inner)]) == []
    with_card(tmp_path / "all", approval={"status": "pending"})
    for path in (inner, link):
        with pytest.raises(ConfigError, match="pending"):
            check_cards([str(path)])


def test_card_and_audit_go_into_the_lineage(tmp_path: Path) -> None:
    file = data(tmp_path / "p.jsonl")
    plain = describe_input(file, "data")
    assert set(plain) == {"kind", "path", "sha256"}
    with_card(file)
    summary = {"rules": 1, "sha256": plain["sha256"], "findings": {"error": 0}}
    file.with_name("p.jsonl.audit.yaml").write_text(yaml.safe_dump(summary), encoding="utf-8")
    found = describe_input(file, "data")
    assert found["card"]["owner"] == "reviews team" and found["card"]["created"] == "2026-11-30"
    assert found["audit"] == summary
    data(file, '{"prompt": "b"}\n')
    assert describe_input(file, "data")["audit"] == {"stale": True, "sha256": plain["sha256"]}
    assert "card" not in describe_input(file, "code")
