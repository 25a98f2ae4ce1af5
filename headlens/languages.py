"""Languages that are set on a model (M2M100, NLLB, mBART, X-MOD, Marian with several targets), and its letters."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from headlens.errors import ModelError, OptionError, listed

_CASED = 0.01  # share of tokens with capitals from which a vocabulary counts as cased
_PREFIX = re.compile(r"<2[a-z]{2,3}(_[A-Za-z]{2,4})?>")  # <2de>, <2zh_Hant>
SIDES = ("source", "target")
_TARGET_WRITTEN = "Name it with --model-args target-language, or begin every source with its code."


def language_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The codes of the languages that a tokenizer distinguishes, as one writes them, with the ids of their tokens.

    Codes of Marian are without the signs around them in texts (`>>deu<<`). Empty for tokenizers without languages.
    """
    known: Any = tokenizer
    if codes := getattr(known, "supported_language_codes", None):
        return {code.strip("<>"): int(known.encoder[code]) for code in codes}
    if not hasattr(known, "set_tgt_lang_special_tokens"):
        return {}
    if ids := getattr(known, "lang_code_to_id", None):
        return {str(code).strip("_"): int(number) for code, number in ids.items()}
    special = [str(token) for token in known.all_special_tokens]
    standard = {str(token) for token in known.special_tokens_map.values() if isinstance(token, str)}
    return {token: int(known.convert_tokens_to_ids(token)) for token in special if token not in standard}


def known_languages(tokenizer: PreTrainedTokenizerBase | None, model: Any) -> dict[str, int]:
    """The codes of the languages that a model distinguishes: those of its adapters (X-MOD), or of its tokenizer."""
    adapters = _adapter_languages(model)
    if adapters or tokenizer is None:
        return {code: number for number, code in enumerate(adapters)}
    return language_tokens(tokenizer)


def _adapter_languages(model: Any) -> list[str]:
    return list(model.config.languages) if hasattr(model, "set_default_language") else []


def set_languages(
    name: str,
    tokenizer: PreTrainedTokenizerBase | None,
    model: Any,
    codes: tuple[str | None, str | None],
    stated: Mapping[str, Any],
) -> frozenset[str]:
    """Sets the languages of source and target on a tokenizer, and the token that translations begin with on a model.

    Args:
        name: name of the model, for errors.
        tokenizer: its tokenizer, which is changed.
        model: the model, whose settings of generation, or language of adapters, are changed.
        codes: codes of source and target as the user gave them; None for none.
        stated: what tokenizer_config.json says. Its languages count if it names a target: a source alone is what
            transformers fills in.

    Returns:
        The sides, `source` and `target`, whose language is needed and not known.

    Raises:
        OptionError: if model and tokenizer do not know a language that was asked for, or have none.
    """
    untyped: Any = tokenizer
    tokens, adapters = known_languages(tokenizer, model), _adapter_languages(model)
    by_text = bool(getattr(untyped, "supported_language_codes", None))
    fixed_side = "source" if by_text else "target" if adapters else None
    for side, code in zip(SIDES, codes, strict=True):
        if code is not None:
            _check_language(name, side, code, {} if side == fixed_side else tokens)
    if not tokens:
        return frozenset()
    source, target = codes
    if adapters:
        model.config.default_language = source or model.config.default_language
        return frozenset(() if model.config.default_language in adapters else ("source",))
    if by_text:
        target = target or (stated["target_lang"] if stated.get("target_lang") in tokens else None)
        _begin_sources(untyped, name, tokens, None if target is None else tokens[target])
        if target is not None:
            untyped.target_lang = target  # that of a first language stands there
            untyped.init_kwargs["target_lang"] = target
        return frozenset()
    if stated.get("tgt_lang") in tokens:
        source, target = source or stated.get("src_lang"), target or stated["tgt_lang"]
    if source is not None:
        untyped.src_lang = source
    if target is not None:
        untyped.tgt_lang = target
        # What a trained model is saved with says both.
        untyped.init_kwargs |= {"src_lang": source, "tgt_lang": target}
        _begin_with(tokens[target], untyped, model)
    return frozenset(side for side, code in zip(SIDES, (source, target), strict=True) if code is None)


def _check_language(name: str, side: str, code: str, tokens: Mapping[str, int]) -> None:
    if not tokens:
        problem = f"--model-args {side}-language {code}: {name} does not take a language for its {side}."
        raise OptionError(problem, "Leave it out.")
    if code not in tokens:
        raise OptionError(
            f"--model-args {side}-language {code}: {name} has no such language.", listed_languages(tokens)
        )


def chosen_languages(tokenizer: Any, model: Any, unknown_languages: Collection[str]) -> dict[str, str]:
    """Codes of the languages chosen for a model, or named by its files, by side; none for `unknown_languages`."""
    known = known_languages(tokenizer, model)
    tellers = {"source": ((model.config, "default_language"), (tokenizer, "src_lang"))}
    tellers["target"] = ((tokenizer, "tgt_lang"), (tokenizer, "target_lang"))
    codes = ((side, getattr(holder, name, None)) for side, names in tellers.items() for holder, name in names)
    return {side: code for side, code in codes if code in known and side not in unknown_languages}


def _begin_with(token: int, tokenizer: Any, model: Any) -> None:
    """Makes a model begin translations with the token of their language, where `generate` puts it."""
    settings = getattr(model, "generation_config", None)
    # mBART of 25 languages and PLBart have the token at the end of a text, from where it comes to the front of the
    # decoder's input. NLLB may have it there, too (`legacy_behaviour`), but starts with the token of its files.
    is_moved = model.config.model_type in ("mbart", "plbart") and tokenizer(text_target="a")["input_ids"][0] != token
    if not is_moved:
        if settings is not None:
            settings.forced_bos_token_id = token
        return
    for target_config in (model.config, settings):
        if target_config is not None:
            target_config.decoder_start_token_id = token


def _begin_sources(tokenizer: Any, name: str, tokens: Mapping[str, int], target: int | None) -> None:
    """Makes a Marian tokenizer begin every source with the token of the target language, or check that it does."""
    plain = tokenizer.build_inputs_with_special_tokens

    def begun(ids: list[int], more: list[int] | None = None) -> list[int]:
        is_chosen = tokenizer.current_spm is not tokenizer.spm_source or (ids and ids[0] in tokens.values())
        # A single language need not be set.
        if target is None and not is_chosen and len(tokens) > 1:
            problem = f"{name} needs to know the target language. {_TARGET_WRITTEN}"
            raise ModelError(problem, listed_languages(tokens))
        token_ids: list[int] = plain(ids if target is None or is_chosen else [target, *ids], more)
        return token_ids

    tokenizer.build_inputs_with_special_tokens = begun


def listed_languages(tokens: Mapping[str, int]) -> str:
    """The codes of a tokenizer's languages, for errors; of very many the first."""
    return f"Languages: {listed(sorted(tokens), 300)}."


def language_notes(
    tokenizer: Any, model: Any, unknown_languages: Collection[str], given: Collection[str | None]
) -> list[str]:
    """Notes on languages that nobody asked for: those that the files of a model name, and those that only a text names.

    Args:
        tokenizer: the tokenizer, with its languages set.
        model: the model.
        unknown_languages: sides whose language is not known.
        given: codes that the user gave.
    """
    notes = [
        f"The {side} language is {code}, according to the model's files; --model-args {side}-language changes it."
        for side, code in chosen_languages(tokenizer, model, unknown_languages).items()
        if code not in given
    ]
    # Those of MADLAD-400 and IndicBART.
    codes = sorted(t for t in ({} if tokenizer is None else tokenizer.get_vocab()) if _PREFIX.fullmatch(t))
    if len(codes) > 1:
        notes.append(
            f"Its vocabulary has tokens that name languages ({', '.join(codes[:3])} …), which headlens does not add "
            "to texts: write them into the data where the model expects them."
        )
    return notes


def writes_lower_case(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer writes text in lower case before it looks its words up."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    lowers = normalizer is not None and normalizer.normalize_str("A") == "a"
    return bool(lowers or (not tokenizer.is_fast and getattr(tokenizer, "do_lower_case", False)))


def case_note(tokenizer: PreTrainedTokenizerBase) -> str:
    """Notes on a vocabulary whose letters are not those of the text that a tokenizer makes; empty if all is well.

    Without a tokenizer_config.json the text of a cased BERT is written in lower case, and that of an uncased one is not
    where such a file says so.
    """
    vocabulary = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens) - set(tokenizer.added_tokens_encoder)
    capitals, small = (sum(token != form(token) for token in vocabulary) for form in (str.lower, str.upper))
    if writes_lower_case(tokenizer):
        if capitals < _CASED * len(vocabulary):
            return ""
        return (
            f"The tokenizer writes text in lower case, but {capitals:,} of the {len(vocabulary):,} tokens it knows "
            'have capitals: is the vocabulary cased? If so, put {"do_lower_case": false} into its '
            "tokenizer_config.json."
        )
    if small and not capitals:
        return (
            "The tokenizer leaves capitals as they are, but none of its tokens has one: is the vocabulary "
            'uncased? If so, put {"do_lower_case": true} into its tokenizer_config.json, or write the text in '
            "lower case."
        )
    if capitals and not small:
        return (
            "None of its tokens has lower-case letters: if the model was trained on capitals, write the text in "
            "capitals."
        )
    return ""
