"""Conversations as text, as the chat template of a tokenizer writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from headlens.corpora.sentence import Sentence
from headlens.corpora.text import split_words
from headlens.errors import CorpusError, OptionError
from headlens.hub_access import hub_answers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MESSAGES = "messages"  # the column of conversations, where none is named
_SHAPE = 'Write [{"role": "user", "content": "…"}, …].'


def are_messages(cell: object) -> TypeGuard[list[Mapping[str, Any]]]:
    """Whether a cell of a table holds a conversation: a list of objects with a role and what was said."""
    return isinstance(cell, list) and bool(cell) and all(isinstance(m, Mapping) and "role" in m for m in cell)


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a tokenizer, which models that converse were trained with.

    Args:
        name: folder or hub id of the tokenizer.
        offline: never ask the hub.
    """

    name: str
    offline: bool = False

    def text(self, messages: list[Mapping[str, Any]], path: str | Path, line: int | None = None) -> str:
        """Writes a conversation as text, whose tokens are those of the template.

        A first token that the tokenizer puts before every text is left out of it: it would be there twice.

        Args:
            messages: mappings with `role` and `content`.
            path: file or data set, for errors.
            line: line in the file, for errors.

        Raises:
            CorpusError: if the template refuses the conversation, or its text gives other tokens.
        """
        tokenizer = self.tokenizer
        try:
            text = str(tokenizer.apply_chat_template(list(map(dict, messages)), tokenize=False))
        except Exception as error:  # whatever a template raises, and jinja's own
            reason = str(error).strip().splitlines()[:1]
            message = f"the chat template of {self.name} refuses the conversation: {''.join(reason)}"
            raise CorpusError(message, _SHAPE, path=path, line=line) from error
        expected = tokenizer(text, add_special_tokens=False)["input_ids"]
        first = tokenizer.bos_token
        if first and text.startswith(first) and tokenizer(text)["input_ids"][:2] == [tokenizer.bos_token_id] * 2:
            text = text.removeprefix(first)
        if tokenizer(text)["input_ids"] != expected:
            message = f"the tokenizer of {self.name} adds tokens to what its chat template writes."
            raise CorpusError(message, "Write the conversations as text yourself.", path=path, line=line)
        return text

    def sentence(self, text: str, identifier: str) -> Sentence:
        """Makes a sentence of a conversation that was written as text; special tokens of the template are no words."""
        special = [match.span() for match in self._special.finditer(text)] if self._special else []
        inside = (word for word in split_words(text) if not any(a <= word.start < b for a, b in special))
        return Sentence(text, tuple(inside), identifier)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, loaded when it is first asked for."""
        from transformers import AutoTokenizer  # noqa: PLC0415 - costs seconds, and few corpora are conversations

        alone = self.offline or Path(self.name).is_dir() or not hub_answers()
        try:
            # Without `False` transformers asks on the terminal whether code may run.
            loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                self.name, local_files_only=alone, trust_remote_code=False
            )
        except Exception as error:
            reason = "".join(str(error).strip().splitlines()[:1])
            raise OptionError(
                f"--data-args chat={self.name}: there is no tokenizer: {reason}", "Name a model or its folder."
            ) from error
        return loaded

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        names = [token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special]
        return re.compile("|".join(map(re.escape, names))) if names else None


def template_of(name: str | None, *, offline: bool) -> ChatTemplate | None:
    """Returns the chat template of a tokenizer; None for no name.

    Raises:
        OptionError: if there is no such tokenizer, or it has no template.
    """
    if name is None:
        return None
    template = ChatTemplate(name, offline)
    if not template.tokenizer.chat_template:
        raise OptionError(f"The tokenizer of {name} has no chat template.", "Name one of a chat model.")
    return template
