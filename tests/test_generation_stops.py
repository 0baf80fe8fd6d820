"""When a text ends, and what of it is shown; with a real byte-level tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_decoders import EOS, make_decoder

from compile.errors import ModelError
from compile.generation.sampling import Sampling
from compile.generation.stops import eos_token_ids, finish_reason, special_stops, visible_text


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    from tokenizers import Tokenizer

    folder = make_decoder(tmp_path_factory.mktemp("decoder"))
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def ended(tokenizer, text: str, sampling: Sampling, limit: int = 100) -> tuple[int, str | None, str]:
    """How many of the text's tokens are needed until it ends, why, and what is shown."""
    ids = tokenizer.encode(text).ids
    for count in range(1, len(ids) + 1):
        reason = finish_reason(sampling, ids[:count], limit, tokenizer.decode)
        if reason:
            return count, reason, visible_text(sampling, ids[:count], reason, tokenizer.decode)
    return len(ids), None, tokenizer.decode(ids)


def test_a_stop_string_over_several_tokens_is_found_with_its_last_one(tokenizer) -> None:
    text = "a good movie. END and more"
    count, reason, shown = ended(tokenizer, text, Sampling(stop_strings=(". END", "never")))
    assert (reason, shown) == ("stop_string", "a good movie")
    assert tokenizer.decode(tokenizer.encode(text).ids[: count - 1]).endswith(". EN")


def test_of_several_stop_strings_the_text_is_cut_at_the_first(tokenizer) -> None:
    assert ended(tokenizer, "one two", Sampling(stop_strings=("wo", "two")))[1:] == ("stop_string", "one ")


def test_a_stop_string_may_end_in_the_middle_of_a_token(tokenizer) -> None:
    assert tokenizer.token_to_id("what") in tokenizer.encode("how what is").ids
    assert ended(tokenizer, "how what is", Sampling(stop_strings=("wha",)))[1:] == ("stop_string", "how ")


def test_bytes_of_half_a_character_are_no_match(tokenizer) -> None:
    count, reason, shown = ended(tokenizer, "abc é stop", Sampling(stop_strings=("é",)))
    assert (reason, shown) == ("stop_string", "abc ")
    assert tokenizer.decode(tokenizer.encode("abc é stop").ids[:count]).endswith("é")


def test_end_tokens_by_whose_they_are_and_are_not_shown(tokenizer) -> None:
    dot = tokenizer.encode(".").ids[0]
    sampling = Sampling(eos_token_id=(EOS,), stop_token_ids=(dot,))
    assert ended(tokenizer, "paris. france", sampling)[1:] == ("stop_token", "paris")
    ids = [*tokenizer.encode("paris").ids, EOS]
    assert finish_reason(sampling, ids, 100, None) == "stop"
    assert visible_text(sampling, ids, "stop", tokenizer.decode) == "paris"


def test_the_limit_comes_last(tokenizer) -> None:
    ids = tokenizer.encode("how are you").ids
    assert finish_reason(Sampling(), ids, len(ids), None) == "length"
    assert finish_reason(Sampling(), ids, len(ids) + 1, None) is None
    assert finish_reason(Sampling(stop_strings=("you",)), ids, len(ids), tokenizer.decode) == "stop_string"
    assert visible_text(Sampling(), ids, "length", tokenizer.decode) == "how are you"


def test_stop_strings_without_a_decoder_are_an_error() -> None:
    with pytest.raises(ValueError, match="decodes tokens"):
        finish_reason(Sampling(stop_strings=("x",)), [5], 10, None)


def test_special_tokens_among_stop_strings_become_stop_tokens() -> None:
    assert special_stops(["\n\n", "<|end|>"], {"<|end|>": 3, "</s>": 2}) == (("\n\n",), (3,))


def test_end_tokens_come_from_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert eos_token_ids(tmp_path) == (5,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert eos_token_ids(tmp_path) == (7, 8)
    (tmp_path / "generation_config.json").write_text("{}")
    assert eos_token_ids(tmp_path) == (5,)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="eos_token_id"):
        eos_token_ids(tmp_path)
