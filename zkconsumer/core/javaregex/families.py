"""Java's named and predefined sets of characters: `\\p{...}`, `\\d`, `\\h`, and their like."""

from __future__ import annotations

import unicodedata

from zkconsumer.core.javaregex.names import BLOCKS, SCRIPTS
from zkconsumer.core.javaregex.sets import CharSet, Mode, Negation, Text, span
from zkconsumer.errors import InvalidFilterError, UnsupportedFilterError, shown

LINE_ENDS = r"\n\r\u0085\u2028\u2029"
_HORIZONTAL = r"\t\u0020\u00A0\u1680\u180E\u2000-\u200A\u202F\u205F\u3000"
_VERTICAL = r"\n-\r\u0085\u2028\u2029"
_ASCII_SPACE = r"\t-\r\u0020"
_SPACE = r"\p{Z}\t-\r\u0085"
_IGNORABLE = r"\u0000-\u0008\u000E-\u001B\u007F-\u009F\p{Cf}"
UNICODE_WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200C\u200D"
_HEX_DIGIT = r"\p{Nd}0-9A-Fa-f\uFF10-\uFF19\uFF21-\uFF26\uFF41-\uFF46"
# What \b takes for a word, marks aside (until Java 19): not what \w takes.
BOUND_WORD = r"_\p{L}\p{Nd}"

_CATEGORIES = frozenset({
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Me", "Mc", "Nd", "Nl", "No", "Zs", "Zl", "Zp", "Cc",
    "Cf", "Co", "Cs", "Pd", "Ps", "Pe", "Pc", "Po", "Sm", "Sc", "Sk", "So", "Pi", "Pf",
    "L", "M", "N", "Z", "C", "P", "S",
})
_ASCII_CLASSES = {
    "ASCII": r"\u0000-\u007F", "Alnum": "0-9A-Za-z", "Alpha": "A-Za-z", "Blank": r"\u0020\t",
    "Cntrl": r"\u0000-\u001F\u007F", "Digit": "0-9", "Graph": r"\u0021-\u007E", "Lower": "a-z",
    "Print": r"\u0020-\u007E", "Punct": r"\u0021-\u002F\u003A-\u0040\u005B-\u0060\u007B-\u007E",
    "Space": _ASCII_SPACE, "Upper": "A-Z", "XDigit": "0-9A-Fa-f",
}  # fmt: skip
_JAVA = {
    "LC": r"\p{Lu}\p{Ll}\p{Lt}", "LD": r"\p{L}\p{Nd}", "L1": r"\u0000-\u00FF",
    "all": r"\u0000-\U0010FFFF",
    "javaLowerCase": r"\p{Lowercase}", "javaUpperCase": r"\p{Uppercase}",
    "javaAlphabetic": r"\p{Alphabetic}", "javaIdeographic": r"\p{Ideographic}",
    "javaTitleCase": r"\p{Lt}", "javaDigit": r"\p{Nd}", "javaDefined": r"\P{Cn}",
    "javaLetter": r"\p{L}", "javaLetterOrDigit": r"\p{L}\p{Nd}",
    "javaJavaIdentifierStart": r"\p{L}\p{Nl}\p{Sc}\p{Pc}",
    "javaJavaIdentifierPart": r"\p{L}\p{Nl}\p{Sc}\p{Pc}\p{Nd}\p{Mc}\p{Mn}" + _IGNORABLE,
    "javaIdentifierIgnorable": _IGNORABLE, "javaSpaceChar": r"\p{Z}",
    "javaWhitespace": r"\t-\r\u001C-\u0020\u1680\u2000-\u2006\u2008-\u200A\u2028\u2029\u205F\u3000",
    "javaISOControl": r"\u0000-\u001F\u007F-\u009F", "javaMirrored": r"\p{Bidi_Mirrored}",
}  # fmt: skip
# What these hold depends on the release of Java.
_MOVING = frozenset({"javaUnicodeIdentifierStart", "javaUnicodeIdentifierPart"})
_GRAPH = r"[^\p{Z}\p{Cc}\p{Cs}\p{Cn}]"
# Under (?U), and after \p{Is...} in any case of letters
_POSIX = {
    "ALPHA": r"\p{Alphabetic}", "LOWER": r"\p{Lowercase}", "UPPER": r"\p{Uppercase}",
    "SPACE": _SPACE, "PUNCT": r"\p{P}", "XDIGIT": _HEX_DIGIT, "ALNUM": r"\p{Alphabetic}\p{Nd}",
    "CNTRL": r"\p{Cc}", "DIGIT": r"\p{Nd}", "BLANK": r"\p{Zs}\t", "GRAPH": _GRAPH,
    "PRINT": rf"[[{_GRAPH}\p{{Zs}}]--\p{{Cc}}]",
}  # fmt: skip
_BINARY = {
    "ALPHABETIC": r"\p{Alphabetic}", "ASSIGNED": r"\P{Cn}", "CONTROL": r"\p{Cc}",
    "HEXDIGIT": _HEX_DIGIT, "HEX_DIGIT": _HEX_DIGIT, "IDEOGRAPHIC": r"\p{Ideographic}",
    "JOINCONTROL": r"\u200C\u200D", "JOIN_CONTROL": r"\u200C\u200D", "LETTER": r"\p{L}",
    "LOWERCASE": r"\p{Lowercase}", "UPPERCASE": r"\p{Uppercase}", "TITLECASE": r"\p{Lt}",
    "NONCHARACTERCODEPOINT": r"\p{Noncharacter_Code_Point}",
    "NONCHARACTER_CODE_POINT": r"\p{Noncharacter_Code_Point}",
    "PUNCTUATION": r"\p{P}", "WHITESPACE": _SPACE, "WHITE_SPACE": _SPACE, "WORD": UNICODE_WORD,
}  # fmt: skip
# Java 11.0.13 and 17 differ in what these are in any case of letters.
_CASED_NAMES = frozenset({
    "lower", "upper", "lowercase", "uppercase", "titlecase", "lu", "ll", "lt",
    "javalowercase", "javauppercase", "javatitlecase",
})

# letter -> (set, set under (?U)); the capital letter is the negation
_PREDEFINED = {
    "d": ("0-9", r"\p{Nd}"),
    "h": (_HORIZONTAL, _HORIZONTAL),
    "s": (_ASCII_SPACE, _SPACE),
    "v": (_VERTICAL, _VERTICAL),
    "w": ("0-9A-Z_a-z", UNICODE_WORD),
}


def predefined(letter: str, mode: Mode) -> CharSet | None:
    """The set of an escape such as \\d or \\W, or None if the letter has none."""
    if letter.lower() not in _PREDEFINED:
        return None
    one = Text(_PREDEFINED[letter.lower()][Mode.UNICODE_CLASSES in mode])
    return Negation(one) if letter.isupper() else one


def family(name: str, mode: Mode) -> CharSet:
    """The set of \\p{name}; InvalidFilterError or UnsupportedFilterError if there is none."""
    key, equals, value = name.partition("=")
    bare = value if equals else name.removeprefix("Is")
    if Mode.CASE_INSENSITIVE in mode and bare.lower() in _CASED_NAMES:
        raise UnsupportedFilterError(f"releases of Java differ in what {name} is in any case")
    body: str | None = None
    if equals:
        body = _keyed(key.lower(), value)
    elif name.startswith("In"):
        body = _block(name[2:])
    elif name.startswith("Is"):
        body = _BINARY.get(bare.upper()) or _POSIX.get(bare.upper())
        body = body or _property(bare) or _script(bare)
    else:
        if Mode.UNICODE_CLASSES in mode:
            body = _POSIX.get(name.upper())
        body = body or _property(name)
    if body is None:
        raise InvalidFilterError(f"Java knows no characters named {shown(name)}")
    return Text(body)


def _keyed(key: str, value: str) -> str | None:
    if key in ("sc", "script"):
        return _script(value)
    if key in ("blk", "block"):
        return _block(value)
    return _property(value) if key in ("gc", "general_category") else None


def _block(name: str) -> str:
    if name.upper() not in BLOCKS:
        raise UnsupportedFilterError(f"the block of characters {shown(name)} is not known here")
    return span(*BLOCKS[name.upper()])


def _script(name: str) -> str:
    if name.upper() not in SCRIPTS:
        raise UnsupportedFilterError(f"the script {shown(name)} is not known here")
    return rf"\p{{Script={SCRIPTS[name.upper()]}}}"


def _property(name: str) -> str | None:
    if name in _MOVING:
        raise UnsupportedFilterError(f"releases of Java differ in what {name} is")
    if name in _CATEGORIES:
        return rf"\p{{{name}}}"
    return _JAVA.get(name, _ASCII_CLASSES.get(name))


def known_character(name: str) -> bool:
    """Whether Unicode has a character of this name."""
    try:
        unicodedata.lookup(name)
    except KeyError:
        return False
    return True
