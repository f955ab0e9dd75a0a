"""GBNF in Lark accepts the same texts: tried on texts inside and outside each language."""

import pytest
from llguidance import LLMatcher

from weft.engine.constraints.gbnf import MAX_DEPTH, is_gbnf, to_lark
from weft.engine.constraints.grammar import GrammarFailed, GrammarVocabulary, build
from weft.model.embedded.byte_tokenizer import tokenizer_files

VOCABULARY = GrammarVocabulary.read(
    tokenizer_files(300, "<|endoftext|>")["tokenizer.json"].decode(), 300, (256,)
)


def accepts(grammar, text):
    """Whether the whole text is in the language."""
    matcher = build(VOCABULARY, LLMatcher.grammar_from_lark(to_lark(grammar)))
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


LANGUAGES = [
    ('root ::= "yes" | "no"', ["yes", "no"], ["", "ye", "yesno"]),
    ("root ::= [a-z]+ [0-9]*", ["a", "abc12"], ["1", "a1b"]),
    # A longest match would take every letter for the word, and find no end.
    ('root ::= word "end"\nword ::= [a-z]+', ["xend", "endend", "enenend"], ["end", "xen"]),
    ("root ::= num num\nnum ::= [0-9]+", ["12", "1234"], ["1"]),
    ('root ::= [^a-c"] "x"', ["dx", "éx"], ["ax", '"x']),
    (r'root ::= "a\"b\\" [\]\-^] "\n"', ['a"b\\]\n', 'a"b\\-\n', 'a"b\\^\n'], ['a"b\\x\n']),
    (r'root ::= "\x41\u00e9" [\u4e00-\u4e02] "\U0001F989"', ["Aé一🦉"], ["Aé丏🦉"]),
    ('root ::= "a"? "b"{2} "c"{1,2} "d"{2,}', ["bbcdd", "abbccddd"], ["bcdd", "bbcd", "bbcccdd"]),
    ('root ::= (("a" | "b") "c")+ ""', ["ac", "bcac"], ["c", "acb"]),
    ('root ::= expr\nexpr ::= expr "+" expr | "(" expr ")" | "1"', ["1", "1+(1+1)"], ["1+", "()"]),
    ('root ::=\n  "a" |\n  "b" # one of two\n\n# the end\n', ["a", "b"], ["ab"]),
    ("root ::= . .", ["é\n", "ab"], ["a", "abc"]),
    ('root ::= my-rule my_rule\nmy-rule ::= "a"\nmy_rule ::= "b"', ["ab"], ["aa"]),
    ('root ::= "/" [/] "a/b"', ["//a/b"], ["/"]),
    ("root ::= [-+] [a-]", ["-a", "+-"], ["ab"]),
    ('root::="a"\nother::="b"', ["a"], ["b"]),
    (
        (
            'root ::= object\nobject ::= "{" (pair ("," pair)*)? "}"\n'
            'pair ::= string ":" (string | object)\nstring ::= "\\"" [^"]* "\\""'
        ),
        ["{}", '{"a":"b"}', '{"a":{"b":""},"c":"d"}'],
        ["{", '{"a"}', '{"a":}'],
    ),
]


@pytest.mark.parametrize(("grammar", "inside", "outside"), LANGUAGES, ids=range(len(LANGUAGES)))
def test_the_language_stays_the_same(grammar, inside, outside):
    """Every text inside is taken, and none outside."""
    assert is_gbnf(grammar)
    assert [accepts(grammar, text) for text in inside] == [True] * len(inside)
    assert [accepts(grammar, text) for text in outside] == [False] * len(outside)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('root ::= "a" foo', "line 1: rule foo is not defined"),
        ('start ::= "a"', "no rule root"),
        ('root ::= "a"\nroot ::= "b"', "line 2: duplicate rule root"),
        ('root ::= ("a"', "line 1: a parenthesis is not closed"),
        ('root ::= ("a"\nx ::= "b")', "line 2: a parenthesis is not closed"),
        ('root ::= "a")', "line 1: parentheses do not match"),
        ("root ::= " + "(" * (MAX_DEPTH + 1), "line 1: parentheses"),
        ('root ::= "a', "line 1: '\"a' is not understood"),
        ("root ::= [z-a]", "runs backwards"),
        (r'root ::= "\q"', r"the escape \\q is unknown"),
        (r'root ::= "\ud800"', "is not a character"),
        (r'root ::= "\U00110000"', "is not a character"),
        ("root ::= [^]", "has no characters"),
        ('"a"\nroot ::= "b"', "line 1: a rule must begin"),
        ("root ::= %", "is not understood"),
    ],
)
def test_what_is_wrong_is_reported_with_its_line(grammar, message):
    """So that the caller can mend it."""
    with pytest.raises(ValueError, match=message):
        to_lark(grammar)


@pytest.mark.parametrize("grammar", ["root ::= *", 'root ::= "a" | + "b"'])
def test_a_star_after_nothing_is_found_when_it_is_built(grammar):
    """The order of the parts is left to Lark to judge."""
    with pytest.raises(GrammarFailed):
        build(VOCABULARY, LLMatcher.grammar_from_lark(to_lark(grammar)))


@pytest.mark.parametrize("grammar", ['start: "a"', 'start: X\nX: "::="', "start: /a ::= b/"])
def test_lark_is_left_alone(grammar):
    """Its rules have a single colon."""
    assert not is_gbnf(grammar)
