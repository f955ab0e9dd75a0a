"""Events that differ in one text, encoded around it once."""

from hypothesis import given
from hypothesis import strategies as st

from weft.schema.chat import ChatChunk, ChatChunkChoice, ChatDelta
from weft.web.http.sse import EventOfText, data_event


@given(st.text(), st.text())
def test_an_event_of_a_text_is_the_event_of_its_value(model, text):
    """To the byte, whatever is in the text and around it."""

    def make(shown):
        delta = ChatDelta(content=shown)
        choice = ChatChunkChoice(index=3, delta=delta)
        return ChatChunk(id="chatcmpl-1", created=5, model=model, choices=[choice])

    assert EventOfText(make).of(text) == data_event(make(text))
