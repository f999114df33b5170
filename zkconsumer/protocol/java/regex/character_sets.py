r"""Sets of characters in Java's patterns, and their text for the `regex` library.

A set is an expression, because Java parses a class before it knows all of its characters (`Bits`).
Its text is a bracketed set in the syntax of `regex`'s version 1, with every character escaped.

The tables below list the blocks and scripts of Unicode that `Character.UnicodeBlock` and
`UnicodeScript` know in Java 11 (Unicode 10), in capitals; Java ignores the case of these names. A
name that is not listed raises UnsupportedFilterError, because another release of Java may know it.
Two kinds are left out: blocks beyond U+FFFF, because ZooKeeper rejects such characters in a path
and so in a topic, and names with blanks, because a filter cannot contain blanks.

The last section has the predefined sets and properties: `\p{...}`, `\d`, `\h` and others.
"""

from __future__ import annotations

import unicodedata
from dataclasses import field
from enum import Flag, auto
from functools import lru_cache

import regex

from zkconsumer.errors import InvalidFilterError, UnsupportedFilterError, quoted
from zkconsumer.frozen import dataclass


class Mode(Flag):
    """The inline flags that apply at a position of a pattern."""

    NONE = 0
    CASE_INSENSITIVE = auto()  # i
    UNICODE_CASE = auto()  # u
    UNICODE_CLASSES = auto()  # U, which also switches u on and off
    MULTILINE = auto()  # m
    DOT_ALL = auto()  # s
    UNIX_LINES = auto()  # d
    COMMENTS = auto()  # x


@dataclass(frozen=True, slots=True)
class Text:
    """The text between the brackets of a set."""

    body: str


@dataclass(slots=True)
class Bits:
    """The single characters below U+0100 of one class; the parser adds to it."""

    codes: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Union:
    """The characters of either set."""

    left: CharSet
    right: CharSet


@dataclass(frozen=True, slots=True)
class Intersection:
    """The characters of both sets."""

    left: CharSet
    right: CharSet


@dataclass(frozen=True, slots=True)
class Negation:
    """All characters that are not in the set."""

    inner: CharSet


CharSet = Text | Bits | Union | Intersection | Negation

# Separates the topics that are matched in one call. ZooKeeper rejects surrogates in a path, so no
# topic contains it. No set written for `regex` contains it either.
SEPARATOR = "\udfff"


# One character other than SEPARATOR, as `escaped` writes it.
_ONE = regex.compile(r"[0-9A-Za-z]|\\u(?!DFFF)[0-9A-F]{4}|\\U[0-9A-F]{8}")


def escaped(code: int) -> str:
    """Return one character in a form that `regex` reads inside and outside of a set."""
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    return f"\\U{code:08X}" if code > 0xFFFF else f"\\u{code:04X}"


def span(first: int, last: int) -> str:
    """Return a range for the text of a set."""
    return escaped(first) if first == last else f"{escaped(first)}-{escaped(last)}"


def _bracketed(one: CharSet) -> str:
    match one:
        case Text(body):
            return f"[{body}]"
        case Bits(codes):
            return f"[{''.join(escaped(code) for code in sorted(codes))}]"
        case Union(left, right):
            return f"[{_bracketed(left)}{_bracketed(right)}]"
        case Intersection(left, right):
            return f"[{_bracketed(left)}&&{_bracketed(right)}]"
        case Negation(inner):
            return f"[^{_bracketed(inner)}]"


def written(one: CharSet) -> str:
    """Return the set as a pattern of `regex` that never matches SEPARATOR."""
    if isinstance(one, Text) and _ONE.fullmatch(one.body):
        return one.body
    return f"[{_bracketed(one)}--[\\uDFFF]]"


# ---- upper and lower case -----------------------------------------------------------------------


def upper(code: int) -> int:
    """Return `Character.toUpperCase(int)`, which is always one character, unlike str.upper."""
    for text in (chr(code).upper(), chr(code).title()):
        if len(text) == 1:
            return ord(text)
    return code


def lower(code: int) -> int:
    """Return `Character.toLowerCase(int)`, which is always one character, unlike str.lower."""
    text = chr(code).lower()
    return ord(text[0]) if len(text) == 1 or code == _DOTTED_I else code


_DOTTED_I = 0x130  # the full lower-case form of this letter is an i and a combining dot
# Letters whose other case is beyond U+00FF: Java does not store them in the bits of a class.
_NO_BITS = frozenset(map(ord, "IiSsKk\u00ff\u00b5\u00c5\u00e5"))


@lru_cache(maxsize=1)
def _cased() -> tuple[tuple[int, int, int], ...]:
    """Return (character, its capital, the capital's small letter) for all characters with case."""
    every = "".join(map(chr, range(0x20000)))
    codes = (ord(found[0]) for found in regex.finditer(r"\p{Changes_When_Casemapped}", every))
    return tuple((code, upper(code), lower(upper(code))) for code in codes)


def single(code: int, mode: Mode) -> CharSet:
    """Return the set for a literal character, with its other cases if the mode ignores case."""
    if Mode.CASE_INSENSITIVE not in mode:
        return Text(escaped(code))
    if Mode.UNICODE_CASE not in mode:
        return Text("".join(map(escaped, sorted(_ascii_cases(code)))))
    capital, small = upper(code), lower(upper(code))
    others = {one for one, _, folded in _cased() if folded == small}
    if capital == small and others - {code}:
        raise UnsupportedFilterError(
            f"Java treats the case of {chr(code)} inconsistently", remedy="leave out (?iu)"
        )
    return Text("".join(map(escaped, sorted({small, code, *others}))))


def _ascii_cases(code: int) -> set[int]:
    text = chr(code)
    return {ord(text.lower()), ord(text.upper())} if text.isascii() else {code}


def in_class(bits: Bits, code: int, mode: Mode) -> CharSet | None:
    """Add a character of a class to its bits and return None, or return it as its own set."""
    folds = Mode.CASE_INSENSITIVE in mode
    unicode = folds and Mode.UNICODE_CASE in mode
    if code > 0xFF or (unicode and code in _NO_BITS):
        return single(code, mode)
    bits.codes.add(code)
    if folds:
        bits.codes |= _ascii_cases(code)
    if unicode and code > 0x7F:
        bits.codes |= {lower(code), upper(code)}
    return None


def between(first: int, last: int, mode: Mode) -> CharSet:
    """Return the set for a range in a class."""
    body = span(first, last)
    if Mode.CASE_INSENSITIVE not in mode:
        return Text(body)
    if Mode.UNICODE_CASE in mode:
        others = {
            code
            for code, capital, small in _cased()
            if first <= capital <= last or first <= small <= last
        }
    else:
        others = {
            other
            for code in range(max(first, 0x41), min(last, 0x7A) + 1)
            for other in _ascii_cases(code)
        }
    return Text(body + "".join(map(escaped, sorted(others))))


# ---- Unicode blocks and scripts ------------------------------------------------------------------


# first-last code point:name:other names
_BLOCKS = """
0-7F:BASICLATIN:BASIC_LATIN 80-FF:LATIN-1SUPPLEMENT:LATIN_1_SUPPLEMENT
100-17F:LATINEXTENDED-A:LATIN_EXTENDED_A 180-24F:LATINEXTENDED-B:LATIN_EXTENDED_B
250-2AF:IPAEXTENSIONS:IPA_EXTENSIONS 2B0-2FF:SPACINGMODIFIERLETTERS:SPACING_MODIFIER_LETTERS
300-36F:COMBININGDIACRITICALMARKS:COMBINING_DIACRITICAL_MARKS 370-3FF:GREEK:GREEKANDCOPTIC
400-4FF:CYRILLIC 500-52F:CYRILLICSUPPLEMENT:CYRILLICSUPPLEMENTARY:CYRILLIC_SUPPLEMENTARY
530-58F:ARMENIAN 590-5FF:HEBREW 600-6FF:ARABIC 700-74F:SYRIAC
750-77F:ARABICSUPPLEMENT:ARABIC_SUPPLEMENT 780-7BF:THAANA 7C0-7FF:NKO 800-83F:SAMARITAN
840-85F:MANDAIC 860-86F:SYRIACSUPPLEMENT:SYRIAC_SUPPLEMENT
8A0-8FF:ARABICEXTENDED-A:ARABIC_EXTENDED_A 900-97F:DEVANAGARI 980-9FF:BENGALI A00-A7F:GURMUKHI
A80-AFF:GUJARATI B00-B7F:ORIYA B80-BFF:TAMIL C00-C7F:TELUGU C80-CFF:KANNADA D00-D7F:MALAYALAM
D80-DFF:SINHALA E00-E7F:THAI E80-EFF:LAO F00-FFF:TIBETAN 1000-109F:MYANMAR 10A0-10FF:GEORGIAN
1100-11FF:HANGULJAMO:HANGUL_JAMO 1200-137F:ETHIOPIC
1380-139F:ETHIOPICSUPPLEMENT:ETHIOPIC_SUPPLEMENT 13A0-13FF:CHEROKEE
1400-167F:UNIFIEDCANADIANABORIGINALSYLLABICS:UNIFIED_CANADIAN_ABORIGINAL_SYLLABICS
1680-169F:OGHAM 16A0-16FF:RUNIC 1700-171F:TAGALOG 1720-173F:HANUNOO 1740-175F:BUHID
1760-177F:TAGBANWA 1780-17FF:KHMER 1800-18AF:MONGOLIAN
18B0-18FF:UNIFIEDCANADIANABORIGINALSYLLABICSEXTENDED:UNIFIED_CANADIAN_ABORIGINAL_SYLLABICS_EXTENDED
1900-194F:LIMBU 1950-197F:TAILE:TAI_LE 1980-19DF:NEWTAILUE:NEW_TAI_LUE
19E0-19FF:KHMERSYMBOLS:KHMER_SYMBOLS 1A00-1A1F:BUGINESE 1A20-1AAF:TAITHAM:TAI_THAM
1AB0-1AFF:COMBININGDIACRITICALMARKSEXTENDED:COMBINING_DIACRITICAL_MARKS_EXTENDED
1B00-1B7F:BALINESE 1B80-1BBF:SUNDANESE 1BC0-1BFF:BATAK 1C00-1C4F:LEPCHA
1C50-1C7F:OLCHIKI:OL_CHIKI 1C80-1C8F:CYRILLICEXTENDED-C:CYRILLIC_EXTENDED_C
1CC0-1CCF:SUNDANESESUPPLEMENT:SUNDANESE_SUPPLEMENT 1CD0-1CFF:VEDICEXTENSIONS:VEDIC_EXTENSIONS
1D00-1D7F:PHONETICEXTENSIONS:PHONETIC_EXTENSIONS
1D80-1DBF:PHONETICEXTENSIONSSUPPLEMENT:PHONETIC_EXTENSIONS_SUPPLEMENT
1DC0-1DFF:COMBININGDIACRITICALMARKSSUPPLEMENT:COMBINING_DIACRITICAL_MARKS_SUPPLEMENT
1E00-1EFF:LATINEXTENDEDADDITIONAL:LATIN_EXTENDED_ADDITIONAL
1F00-1FFF:GREEKEXTENDED:GREEK_EXTENDED 2000-206F:GENERALPUNCTUATION:GENERAL_PUNCTUATION
2070-209F:SUPERSCRIPTSANDSUBSCRIPTS:SUPERSCRIPTS_AND_SUBSCRIPTS
20A0-20CF:CURRENCYSYMBOLS:CURRENCY_SYMBOLS
20D0-20FF:COMBININGDIACRITICALMARKSFORSYMBOLS:COMBININGMARKSFORSYMBOLS:COMBINING_MARKS_FOR_SYMBOLS
2100-214F:LETTERLIKESYMBOLS:LETTERLIKE_SYMBOLS 2150-218F:NUMBERFORMS:NUMBER_FORMS
2190-21FF:ARROWS 2200-22FF:MATHEMATICALOPERATORS:MATHEMATICAL_OPERATORS
2300-23FF:MISCELLANEOUSTECHNICAL:MISCELLANEOUS_TECHNICAL
2400-243F:CONTROLPICTURES:CONTROL_PICTURES
2440-245F:OPTICALCHARACTERRECOGNITION:OPTICAL_CHARACTER_RECOGNITION
2460-24FF:ENCLOSEDALPHANUMERICS:ENCLOSED_ALPHANUMERICS 2500-257F:BOXDRAWING:BOX_DRAWING
2580-259F:BLOCKELEMENTS:BLOCK_ELEMENTS 25A0-25FF:GEOMETRICSHAPES:GEOMETRIC_SHAPES
2600-26FF:MISCELLANEOUSSYMBOLS:MISCELLANEOUS_SYMBOLS 2700-27BF:DINGBATS
27C0-27EF:MISCELLANEOUSMATHEMATICALSYMBOLS-A:MISCELLANEOUS_MATHEMATICAL_SYMBOLS_A
27F0-27FF:SUPPLEMENTALARROWS-A:SUPPLEMENTAL_ARROWS_A 2800-28FF:BRAILLEPATTERNS:BRAILLE_PATTERNS
2900-297F:SUPPLEMENTALARROWS-B:SUPPLEMENTAL_ARROWS_B
2980-29FF:MISCELLANEOUSMATHEMATICALSYMBOLS-B:MISCELLANEOUS_MATHEMATICAL_SYMBOLS_B
2A00-2AFF:SUPPLEMENTALMATHEMATICALOPERATORS:SUPPLEMENTAL_MATHEMATICAL_OPERATORS
2B00-2BFF:MISCELLANEOUSSYMBOLSANDARROWS:MISCELLANEOUS_SYMBOLS_AND_ARROWS 2C00-2C5F:GLAGOLITIC
2C60-2C7F:LATINEXTENDED-C:LATIN_EXTENDED_C 2C80-2CFF:COPTIC
2D00-2D2F:GEORGIANSUPPLEMENT:GEORGIAN_SUPPLEMENT 2D30-2D7F:TIFINAGH
2D80-2DDF:ETHIOPICEXTENDED:ETHIOPIC_EXTENDED 2DE0-2DFF:CYRILLICEXTENDED-A:CYRILLIC_EXTENDED_A
2E00-2E7F:SUPPLEMENTALPUNCTUATION:SUPPLEMENTAL_PUNCTUATION
2E80-2EFF:CJKRADICALSSUPPLEMENT:CJK_RADICALS_SUPPLEMENT 2F00-2FDF:KANGXIRADICALS:KANGXI_RADICALS
2FF0-2FFF:IDEOGRAPHICDESCRIPTIONCHARACTERS:IDEOGRAPHIC_DESCRIPTION_CHARACTERS
3000-303F:CJKSYMBOLSANDPUNCTUATION:CJK_SYMBOLS_AND_PUNCTUATION 3040-309F:HIRAGANA
30A0-30FF:KATAKANA 3100-312F:BOPOMOFO
3130-318F:HANGULCOMPATIBILITYJAMO:HANGUL_COMPATIBILITY_JAMO 3190-319F:KANBUN
31A0-31BF:BOPOMOFOEXTENDED:BOPOMOFO_EXTENDED 31C0-31EF:CJKSTROKES:CJK_STROKES
31F0-31FF:KATAKANAPHONETICEXTENSIONS:KATAKANA_PHONETIC_EXTENSIONS
3200-32FF:ENCLOSEDCJKLETTERSANDMONTHS:ENCLOSED_CJK_LETTERS_AND_MONTHS
3300-33FF:CJKCOMPATIBILITY:CJK_COMPATIBILITY
3400-4DBF:CJKUNIFIEDIDEOGRAPHSEXTENSIONA:CJK_UNIFIED_IDEOGRAPHS_EXTENSION_A
4DC0-4DFF:YIJINGHEXAGRAMSYMBOLS:YIJING_HEXAGRAM_SYMBOLS
4E00-9FFF:CJKUNIFIEDIDEOGRAPHS:CJK_UNIFIED_IDEOGRAPHS A000-A48F:YISYLLABLES:YI_SYLLABLES
A490-A4CF:YIRADICALS:YI_RADICALS A4D0-A4FF:LISU A500-A63F:VAI
A640-A69F:CYRILLICEXTENDED-B:CYRILLIC_EXTENDED_B A6A0-A6FF:BAMUM
A700-A71F:MODIFIERTONELETTERS:MODIFIER_TONE_LETTERS A720-A7FF:LATINEXTENDED-D:LATIN_EXTENDED_D
A800-A82F:SYLOTINAGRI:SYLOTI_NAGRI A830-A83F:COMMONINDICNUMBERFORMS:COMMON_INDIC_NUMBER_FORMS
A840-A87F:PHAGS-PA:PHAGS_PA A880-A8DF:SAURASHTRA
A8E0-A8FF:DEVANAGARIEXTENDED:DEVANAGARI_EXTENDED A900-A92F:KAYAHLI:KAYAH_LI A930-A95F:REJANG
A960-A97F:HANGULJAMOEXTENDED-A:HANGUL_JAMO_EXTENDED_A A980-A9DF:JAVANESE
A9E0-A9FF:MYANMAREXTENDED-B:MYANMAR_EXTENDED_B AA00-AA5F:CHAM
AA60-AA7F:MYANMAREXTENDED-A:MYANMAR_EXTENDED_A AA80-AADF:TAIVIET:TAI_VIET
AAE0-AAFF:MEETEIMAYEKEXTENSIONS:MEETEI_MAYEK_EXTENSIONS
AB00-AB2F:ETHIOPICEXTENDED-A:ETHIOPIC_EXTENDED_A AB30-AB6F:LATINEXTENDED-E:LATIN_EXTENDED_E
AB70-ABBF:CHEROKEESUPPLEMENT:CHEROKEE_SUPPLEMENT ABC0-ABFF:MEETEIMAYEK:MEETEI_MAYEK
AC00-D7AF:HANGULSYLLABLES:HANGUL_SYLLABLES D7B0-D7FF:HANGULJAMOEXTENDED-B:HANGUL_JAMO_EXTENDED_B
D800-DB7F:HIGHSURROGATES:HIGH_SURROGATES
DB80-DBFF:HIGHPRIVATEUSESURROGATES:HIGH_PRIVATE_USE_SURROGATES
DC00-DFFF:LOWSURROGATES:LOW_SURROGATES E000-F8FF:PRIVATEUSEAREA:PRIVATE_USE_AREA
F900-FAFF:CJKCOMPATIBILITYIDEOGRAPHS:CJK_COMPATIBILITY_IDEOGRAPHS
FB00-FB4F:ALPHABETICPRESENTATIONFORMS:ALPHABETIC_PRESENTATION_FORMS
FB50-FDFF:ARABICPRESENTATIONFORMS-A:ARABIC_PRESENTATION_FORMS_A
FE00-FE0F:VARIATIONSELECTORS:VARIATION_SELECTORS FE10-FE1F:VERTICALFORMS:VERTICAL_FORMS
FE20-FE2F:COMBININGHALFMARKS:COMBINING_HALF_MARKS
FE30-FE4F:CJKCOMPATIBILITYFORMS:CJK_COMPATIBILITY_FORMS
FE50-FE6F:SMALLFORMVARIANTS:SMALL_FORM_VARIANTS
FE70-FEFF:ARABICPRESENTATIONFORMS-B:ARABIC_PRESENTATION_FORMS_B
FF00-FFEF:HALFWIDTHANDFULLWIDTHFORMS:HALFWIDTH_AND_FULLWIDTH_FORMS FFF0-FFFF:SPECIALS
"""

# name:other names
_SCRIPTS = """
ADLAM:ADLM AHOM ANATOLIAN_HIEROGLYPHS:HLUW ARABIC:ARAB ARMENIAN:ARMN AVESTAN:AVST BALINESE:BALI
BAMUM:BAMU BASSA_VAH:BASS BATAK:BATK BENGALI:BENG BHAIKSUKI:BHKS BOPOMOFO:BOPO BRAHMI:BRAH
BRAILLE:BRAI BUGINESE:BUGI BUHID:BUHD CANADIAN_ABORIGINAL:CANS CARIAN:CARI
CAUCASIAN_ALBANIAN:AGHB CHAKMA:CAKM CHAM CHEROKEE:CHER COMMON:ZYYY COPTIC:COPT CUNEIFORM:XSUX
CYPRIOT:CPRT CYRILLIC:CYRL DESERET:DSRT DEVANAGARI:DEVA DUPLOYAN:DUPL EGYPTIAN_HIEROGLYPHS:EGYP
ELBASAN:ELBA ETHIOPIC:ETHI GEORGIAN:GEOR GLAGOLITIC:GLAG GOTHIC:GOTH GRANTHA:GRAN GREEK:GREK
GUJARATI:GUJR GURMUKHI:GURU HAN:HANI HANGUL:HANG HANUNOO:HANO HATRAN:HATR HEBREW:HEBR
HIRAGANA:HIRA IMPERIAL_ARAMAIC:ARMI INHERITED:ZINH INSCRIPTIONAL_PAHLAVI:PHLI
INSCRIPTIONAL_PARTHIAN:PRTI JAVANESE:JAVA KAITHI:KTHI KANNADA:KNDA KATAKANA:KANA KAYAH_LI:KALI
KHAROSHTHI:KHAR KHMER:KHMR KHOJKI:KHOJ KHUDAWADI:SIND LAO:LAOO LATIN:LATN LEPCHA:LEPC LIMBU:LIMB
LINEAR_A:LINA LINEAR_B:LINB LISU LYCIAN:LYCI LYDIAN:LYDI MAHAJANI:MAHJ MALAYALAM:MLYM
MANDAIC:MAND MANICHAEAN:MANI MARCHEN:MARC MASARAM_GONDI:GONM MEETEI_MAYEK:MTEI
MENDE_KIKAKUI:MEND MEROITIC_CURSIVE:MERC MEROITIC_HIEROGLYPHS:MERO MIAO:PLRD MODI MONGOLIAN:MONG
MRO:MROO MULTANI:MULT MYANMAR:MYMR NABATAEAN:NBAT NEWA NEW_TAI_LUE:TALU NKO:NKOO NUSHU:NSHU
OGHAM:OGAM OLD_HUNGARIAN:HUNG OLD_ITALIC:ITAL OLD_NORTH_ARABIAN:NARB OLD_PERMIC:PERM
OLD_PERSIAN:XPEO OLD_SOUTH_ARABIAN:SARB OLD_TURKIC:ORKH OL_CHIKI:OLCK ORIYA:ORYA OSAGE:OSGE
OSMANYA:OSMA PAHAWH_HMONG:HMNG PALMYRENE:PALM PAU_CIN_HAU:PAUC PHAGS_PA:PHAG PHOENICIAN:PHNX
PSALTER_PAHLAVI:PHLP REJANG:RJNG RUNIC:RUNR SAMARITAN:SAMR SAURASHTRA:SAUR SHARADA:SHRD
SHAVIAN:SHAW SIDDHAM:SIDD SIGNWRITING:SGNW SINHALA:SINH SORA_SOMPENG:SORA SOYOMBO:SOYO
SUNDANESE:SUND SYLOTI_NAGRI:SYLO SYRIAC:SYRC TAGALOG:TGLG TAGBANWA:TAGB TAI_LE:TALE
TAI_THAM:LANA TAI_VIET:TAVT TAKRI:TAKR TAMIL:TAML TANGUT:TANG TELUGU:TELU THAANA:THAA THAI
TIBETAN:TIBT TIFINAGH:TFNG TIRHUTA:TIRH UGARITIC:UGAR UNKNOWN:ZZZZ VAI:VAII WARANG_CITI:WARA
YI:YIII ZANABAZAR_SQUARE:ZANB
"""


def _entries(table: str) -> list[list[str]]:
    return [entry.split(":") for entry in table.split()]


# name -> (first, last) code point
BLOCKS = {
    name: (int(span.partition("-")[0], 16), int(span.partition("-")[2], 16))
    for span, *names in _entries(_BLOCKS)
    for name in names
}
# name -> the script's full name
SCRIPTS = {name: names[0] for names in _entries(_SCRIPTS) for name in names}


# ---- predefined sets and properties --------------------------------------------------------------


LINE_ENDS = r"\n\r\u0085\u2028\u2029"
_HORIZONTAL = r"\t\u0020\u00A0\u1680\u180E\u2000-\u200A\u202F\u205F\u3000"
_VERTICAL = r"\n-\r\u0085\u2028\u2029"
_ASCII_SPACE = r"\t-\r\u0020"
_SPACE = r"\p{Z}\t-\r\u0085"
_IGNORABLE = r"\u0000-\u0008\u000E-\u001B\u007F-\u009F\p{Cf}"
UNICODE_WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200C\u200D"
_HEX_DIGIT = r"\p{Nd}0-9A-Fa-f\uFF10-\uFF19\uFF21-\uFF26\uFF41-\uFF46"
# The word characters for \b (until Java 19), without combining marks; this set differs from \w.
BOUND_WORD = r"_\p{L}\p{Nd}"

_CATEGORIES = frozenset(
    {
        "Cn",
        "Lu",
        "Ll",
        "Lt",
        "Lm",
        "Lo",
        "Mn",
        "Me",
        "Mc",
        "Nd",
        "Nl",
        "No",
        "Zs",
        "Zl",
        "Zp",
        "Cc",
        "Cf",
        "Co",
        "Cs",
        "Pd",
        "Ps",
        "Pe",
        "Pc",
        "Po",
        "Sm",
        "Sc",
        "Sk",
        "So",
        "Pi",
        "Pf",
        "L",
        "M",
        "N",
        "Z",
        "C",
        "P",
        "S",
    }
)
_ASCII_CLASSES = {
    "ASCII": r"\u0000-\u007F",
    "Alnum": "0-9A-Za-z",
    "Alpha": "A-Za-z",
    "Blank": r"\u0020\t",
    "Cntrl": r"\u0000-\u001F\u007F",
    "Digit": "0-9",
    "Graph": r"\u0021-\u007E",
    "Lower": "a-z",
    "Print": r"\u0020-\u007E",
    "Punct": r"\u0021-\u002F\u003A-\u0040\u005B-\u0060\u007B-\u007E",
    "Space": _ASCII_SPACE,
    "Upper": "A-Z",
    "XDigit": "0-9A-Fa-f",
}
_JAVA = {
    "LC": r"\p{Lu}\p{Ll}\p{Lt}",
    "LD": r"\p{L}\p{Nd}",
    "L1": r"\u0000-\u00FF",
    "all": r"\u0000-\U0010FFFF",
    "javaLowerCase": r"\p{Lowercase}",
    "javaUpperCase": r"\p{Uppercase}",
    "javaAlphabetic": r"\p{Alphabetic}",
    "javaIdeographic": r"\p{Ideographic}",
    "javaTitleCase": r"\p{Lt}",
    "javaDigit": r"\p{Nd}",
    "javaDefined": r"\P{Cn}",
    "javaLetter": r"\p{L}",
    "javaLetterOrDigit": r"\p{L}\p{Nd}",
    "javaJavaIdentifierStart": r"\p{L}\p{Nl}\p{Sc}\p{Pc}",
    "javaJavaIdentifierPart": r"\p{L}\p{Nl}\p{Sc}\p{Pc}\p{Nd}\p{Mc}\p{Mn}" + _IGNORABLE,
    "javaIdentifierIgnorable": _IGNORABLE,
    "javaSpaceChar": r"\p{Z}",
    "javaWhitespace": r"\t-\r\u001C-\u0020\u1680\u2000-\u2006\u2008-\u200A\u2028\u2029\u205F\u3000",
    "javaISOControl": r"\u0000-\u001F\u007F-\u009F",
    "javaMirrored": r"\p{Bidi_Mirrored}",
}
# Java's releases differ in the characters of these properties.
_RELEASE_DEPENDENT = frozenset({"javaUnicodeIdentifierStart", "javaUnicodeIdentifierPart"})
_GRAPH = r"[^\p{Z}\p{Cc}\p{Cs}\p{Cn}]"
# The POSIX classes under (?U), and after \p{Is...}; the case of the name is ignored.
_POSIX = {
    "ALPHA": r"\p{Alphabetic}",
    "LOWER": r"\p{Lowercase}",
    "UPPER": r"\p{Uppercase}",
    "SPACE": _SPACE,
    "PUNCT": r"\p{P}",
    "XDIGIT": _HEX_DIGIT,
    "ALNUM": r"\p{Alphabetic}\p{Nd}",
    "CNTRL": r"\p{Cc}",
    "DIGIT": r"\p{Nd}",
    "BLANK": r"\p{Zs}\t",
    "GRAPH": _GRAPH,
    "PRINT": rf"[[{_GRAPH}\p{{Zs}}]--\p{{Cc}}]",
}
_BINARY = {
    "ALPHABETIC": r"\p{Alphabetic}",
    "ASSIGNED": r"\P{Cn}",
    "CONTROL": r"\p{Cc}",
    "HEXDIGIT": _HEX_DIGIT,
    "HEX_DIGIT": _HEX_DIGIT,
    "IDEOGRAPHIC": r"\p{Ideographic}",
    "JOINCONTROL": r"\u200C\u200D",
    "JOIN_CONTROL": r"\u200C\u200D",
    "LETTER": r"\p{L}",
    "LOWERCASE": r"\p{Lowercase}",
    "UPPERCASE": r"\p{Uppercase}",
    "TITLECASE": r"\p{Lt}",
    "NONCHARACTERCODEPOINT": r"\p{Noncharacter_Code_Point}",
    "NONCHARACTER_CODE_POINT": r"\p{Noncharacter_Code_Point}",
    "PUNCTUATION": r"\p{P}",
    "WHITESPACE": _SPACE,
    "WHITE_SPACE": _SPACE,
    "WORD": UNICODE_WORD,
}
# Java 11.0.13 and 17 match different characters with these properties if case is ignored.
_CASED_NAMES = frozenset(
    {
        "lower",
        "upper",
        "lowercase",
        "uppercase",
        "titlecase",
        "lu",
        "ll",
        "lt",
        "javalowercase",
        "javauppercase",
        "javatitlecase",
    }
)

# letter -> (set, set under (?U)); the capital letter is the negation
_PREDEFINED = {
    "d": ("0-9", r"\p{Nd}"),
    "h": (_HORIZONTAL, _HORIZONTAL),
    "s": (_ASCII_SPACE, _SPACE),
    "v": (_VERTICAL, _VERTICAL),
    "w": ("0-9A-Z_a-z", UNICODE_WORD),
}


def predefined(letter: str, mode: Mode) -> CharSet | None:
    r"""Return the set of an escape such as `\d` or `\W`, or None if the letter has none."""
    if letter.lower() not in _PREDEFINED:
        return None
    one = Text(_PREDEFINED[letter.lower()][Mode.UNICODE_CLASSES in mode])
    return Negation(one) if letter.isupper() else one


def family(name: str, mode: Mode) -> CharSet:
    r"""Return the set of `\p{name}`, or raise InvalidFilterError or UnsupportedFilterError."""
    key, equals, value = name.partition("=")
    bare = value if equals else name.removeprefix("Is")
    if Mode.CASE_INSENSITIVE in mode and bare.lower() in _CASED_NAMES:
        raise UnsupportedFilterError(
            f"Java's releases differ in what {name} matches if case is ignored"
        )
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
        raise InvalidFilterError(f"Java has no character property named {quoted(name)}")
    return Text(body)


def _keyed(key: str, value: str) -> str | None:
    if key in ("sc", "script"):
        return _script(value)
    if key in ("blk", "block"):
        return _block(value)
    return _property(value) if key in ("gc", "general_category") else None


def _block(name: str) -> str:
    if name.upper() not in BLOCKS:
        raise UnsupportedFilterError(f"zkconsumer does not know the Unicode block {quoted(name)}")
    return span(*BLOCKS[name.upper()])


def _script(name: str) -> str:
    if name.upper() not in SCRIPTS:
        raise UnsupportedFilterError(f"zkconsumer does not know the Unicode script {quoted(name)}")
    return rf"\p{{Script={SCRIPTS[name.upper()]}}}"


def _property(name: str) -> str | None:
    if name in _RELEASE_DEPENDENT:
        raise UnsupportedFilterError(f"Java's releases differ in what {name} matches")
    if name in _CATEGORIES:
        return rf"\p{{{name}}}"
    return _JAVA.get(name, _ASCII_CLASSES.get(name))


def known_character(name: str) -> bool:
    """Return whether Unicode has a character with this name."""
    try:
        unicodedata.lookup(name)
    except KeyError:
        return False
    return True
