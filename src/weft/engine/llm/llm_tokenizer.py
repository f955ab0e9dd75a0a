"""Tokenizer of an `LLM`, with the methods that scripts use on a tokenizer of transformers."""

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.client import Renderer
from weft.core.errors import BadRequest, Unsupported
from weft.text.templates.chat import ChatTemplate, Message


class LLMTokenizer:
    """Converts text to token ids and back, and a conversation to a prompt with the model's chat template.

    All other attributes are those of `weft.text.tokenizer.Tokenizer`.
    """

    def __init__(self, renderer: Renderer, template: ChatTemplate | None) -> None:
        self._renderer = renderer
        self._template = template

    @property
    def chat_template(self) -> str | None:
        """Text of the model's chat template; None if the model has none."""
        return None if self._template is None else self._template.source

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of a text; `add_special_tokens` adds the model's usual special tokens."""
        return self._renderer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = True) -> str:
        """Returns the text of several token ids, or of one."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._renderer.decode(ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **template: Any,
    ) -> str | list[int]:
        """Returns the prompt for a conversation: token ids, or with `tokenize` False text.

        `template` has values of the model's own template variables, such as `enable_thinking`.
        """
        if self._template is None:
            raise Unsupported("this model has no chat template; use encode")
        if template.pop("chat_template", None) is not None:
            raise BadRequest(
                "chat_template", "chat_template: the model's own is used; leave it out"
            )
        text = self._template.render(
            conversation,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template,
        )
        # The template writes the special tokens itself.
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # an object that is being copied has no attributes yet
            raise AttributeError(name)
        return getattr(self._renderer, name)
