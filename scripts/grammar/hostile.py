#!/usr/bin/env python3
"""Patterns, grammars and schemas made to explode, against a running server: `hostile.py BINARY`, or `hostile.py URL PID`.

Two hundred requests, one after another and then eight at once. Looked at: the server's resident memory (at most
start + 512 MB at any time, start + 64 MB in the end, where start is after a first structured request), the time to
each answer (at most structured_output.compile_timeout_s + 1 s), and a side client that asks for a small schema every
second, a new one each time, and has to get 200.

Python's standard library only. Exit code 1 when a bound is not kept; `--list` prints the cases, `--only WORD` runs
those whose name has the word, `--verbose` prints each answer.
"""

import argparse
import json
import os
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from server import Server  # noqa: E402

TIMEOUT_S = 10
MOST_MB = 512
LEFT_MB = 64
KIB = 1024
LARGE = 256 * KIB


def words(count, length, seed=7):
    """Distinct words of letters, the same on every run."""
    state = seed
    for number in range(count):
        letters = []
        for _ in range(length):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            letters.append(chr(97 + (state >> 33) % 26))
        yield "".join(letters) + str(number)


def fill(unit, size=LARGE):
    return unit * (size // len(unit.encode()))


def regexes():
    """(name, pattern)"""
    for n in (1_000, 3_000, 10_000, 30_000, 100_000):
        yield f"optional x {n}", "a?" * n
    yield "optional, then as many", "a?" * 2_000 + "a" * 2_000
    yield "optional of two letters", fill("a?b?")
    yield "optional groups", fill("(ab)?")
    yield "optional classes", fill("[a-z]?")
    yield "optional alternatives", fill("(a|b)?")
    yield "starred letters", fill("a*")
    yield "starred classes", fill("[a-z]*")
    yield "starred groups", fill("(a|bc)*")
    yield "lazy", fill("a*?")
    yield "optional dots", fill(".?")
    yield "starred dots", fill(".*a")
    yield "alphabet, optional", fill("".join(f"{c}?" for c in "abcdefghijklmnopqrstuvwxyz"))
    for depth in (3, 10, 40, 200):
        pattern = "a"
        for _ in range(depth):
            pattern = f"({pattern}){{1,10}}"
        yield f"counted, {depth} deep", pattern
    for depth in (3, 20, 100):
        pattern = "a?b"
        for _ in range(depth):
            pattern = f"({pattern}c?){{0,9}}"
        yield f"counted with an option, {depth} deep", pattern
    for n in (1_000, 100_000, 1_000_000, 4_000_000_000):
        yield f"a{{1,{n}}}", f"a{{1,{n}}}"
        yield f"(a?b?){{{n}}}", f"(a?b?){{{n}}}"
    yield "counted in a row", fill("a{1,999}")
    yield "counted classes in a row", fill("[a-z]{0,99}")
    yield "counted pairs", "((a|b){1,100}(c|d){1,100}){1,100}"
    yield "counted thousands", "(((a{0,1000}b{0,1000}){0,1000}c{0,1000}){0,1000}d?){0,1000}"
    for n in (10, 30, 200, 1_000, 20_000):
        yield f"n-th from the end, {n}", f"(a|b)*a(a|b){{{n}}}"
        yield f"n-th from the end of any text, {n}", f".*a.{{{n}}}"
        yield f"many n-th from the end, {n}", "|".join(f".*{c}.{{{n}}}" for c in "abcdefghij")
    yield "unicode, counted", r"\p{L}{1,1000}"
    yield "unicode, nested counts", r"((\p{L}{1,100}\p{N}?){1,100}\p{P}?){1,100}"
    yield "unicode classes in a row", fill(r"\p{L}")
    yield "unicode optional", fill(r"\p{L}?")
    yield "unicode negated", fill(r"\P{Greek}")
    yield "unicode, one after the other", fill(r"\p{Greek}\p{Cyrillic}\p{Han}\p{Latin}")
    yield "words", fill(r"\w")
    yield "words, counted", fill(r"\w{1,50}")
    yield "not words", fill(r"\W?")
    yield "unicode sets", fill(r"[\p{L}--\p{Lu}]")
    yield "unicode differences", fill(r"[\p{L}~~\p{Greek}]?")
    yield "any case", "(?i)" + fill("abcdefgh", LARGE - 8)
    yield "any case of unicode", "(?i)" + fill(r"\p{L}", LARGE - 8)
    yield "any case of all", "(?i)" + fill(r"[^x]", LARGE - 8)
    yield "any case of a wide range", "(?i)" + fill("[\u0080-\U000effff]", LARGE - 8)
    yield "any case, sets in a row", fill("(?i:[a-zß-ɏ])")
    yield "not a letter", fill("[^a]?")
    yield "ranges", "[" + "".join(chr(c) for c in range(0x4E00, 0x4E00 + 60_000, 2) if not 0xD800 <= c < 0xE000) + "]{1,100}"
    yield "alternatives, long", "|".join(words(4_000, 55))
    yield "alternatives, many", "|".join(words(22_000, 5))
    yield "alternatives, repeated", "(" + "|".join(words(4_000, 55)) + ")*"
    yield "alternatives, counted", "(" + "|".join(words(4_000, 55)) + "){1,1000}"
    yield "alternatives behind any text", ".*(" + "|".join(words(4_000, 55)) + ").*"
    yield "alternatives, nested", "(a|" * 240 + "b" + ")*" * 240
    yield "alternatives with options", "|".join(f"{w}?" for w in words(4_000, 50))
    yield "alternatives of prefixes", "|".join("a" * n for n in range(1, 700))
    yield "alternatives of suffixes", "|".join("a?" * n for n in range(1, 400))
    yield "groups, deep", "(" * 120_000 + "a" + ")" * 120_000
    yield "groups, open", "(" * 250_000
    yield "classes, deep", "[" * 250_000
    yield "flags", fill("(?i)(?-i)")
    yield "empty alternatives", "(" + "|" * 250_000 + ")"
    yield "empty groups", fill("()")
    yield "empty groups, starred", fill("()*")
    yield "stars of stars", "(" * 200 + "a" + "*)" * 200
    yield "pluses of pluses", "a" + "+" * 200
    yield "counts of counts", "a" + "{2}" * 60
    yield "counts of counts with options", "(a?)" + "{9}" * 100
    yield "anchors", fill("^a$")
    yield "word boundaries", fill(r"\ba")
    yield "lookahead", fill("(?=a)a")
    yield "lookahead that stops", fill("(?P<stop>a?)")
    yield "backreference", r"(a)\1" * 1000
    yield "literal", "a" * LARGE
    yield "literal, counted", "(" + "ab" * 50_000 + "){1,1000}"
    yield "line feeds", fill("\n?")
    yield "emoji", fill("(😀|🎉)?")
    yield "possessive look", fill("a?+")
    yield "bytes", fill(r"\x{10ffff}?")


def larks():
    """(name, grammar in Lark)"""
    yield "lark: pattern", "start: /" + "a?" * 100_000 + "/"
    yield "lark: pattern, counted", 'start: X{1000}\nX: /(a?b?c?){1,1000}/'
    yield "lark: rules counted", 'start: "a"{100000}'
    yield "lark: rules counted to", 'start: "a"{0,1000000}'
    yield "lark: rules counted and nested", 'start: a{1,1000}\na: b{1,1000}\nb: c{1,1000}\nc: "x"?'
    yield "lark: options in a row", "start: " + " ".join(['"a"?'] * 30_000)
    yield "lark: rules doubled", "start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(60)) + '\nr60: "a"?'
    yield "lark: terminals doubled", "start: R0\n" + "\n".join(f"R{n}: R{n + 1} R{n + 1}" for n in range(60)) + '\nR60: "a"'
    yield "lark: optional terminals doubled", "start: R0\n" + "\n".join(f"R{n}: R{n + 1}? R{n + 1}?" for n in range(40)) + '\nR40: "a"'
    yield "lark: terminals counted", "start: R0\n" + "\n".join(f"R{n}: R{n + 1}{{0,9}}" for n in range(40)) + '\nR40: "a" | "b"'
    yield "lark: left recursion", 'start: start start | "a" | start start start'
    yield "lark: empty recursion", 'start: start start |'
    yield "lark: ambiguous", 'start: e\ne: e e e e | e e e | e e | "a"? "a"?'
    yield "lark: hidden recursion", 'start: a\na: b a c |\nb: a | "x"\nc: b | a'
    yield "lark: cycle of rules", "start: r0\n" + "\n".join(f"r{n}: r{(n + 1) % 9000}" for n in range(9_000))
    yield "lark: chain of rules", "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(12_000)) + '\nr12000: "a"'
    yield "lark: parentheses", "start: " + "(" * 100_000 + '"a"' + ")" * 100_000
    yield "lark: parentheses, few", "start: " + "(" * 500 + '"a"' + ")?" * 500
    yield "lark: intersections", "start: X\nX: " + " & ".join(f"/(.*[{a}{b}].*[{b}{c}]|[{a}{c}].*){{1,5}}/" for a, b, c in zip("abcdefghij", "bcdefghijk", "cdefghijkl"))
    yield "lark: intersections of alternatives", "start: X\nX: " + " & ".join("/(" + "|".join(f"[{chr(97 + i)}-{chr(97 + i + k)}].*" for i in range(12)) + ")/" for k in range(1, 12))
    yield "lark: intersections of counts", "start: X\nX: " + " & ".join(f"/(a{{1,{n}}}b?)*/" for n in range(20, 60))
    yield "lark: intersections of primes", "start: X\nX: " + " & ".join(f"/(a{{{n}}})*b/" for n in (3, 5, 7, 11, 13, 17, 19, 23, 29, 31))
    yield "lark: complement", "start: X\nX: ~/.*a.{200}/"
    yield "lark: complements", "start: X\nX: " + " & ".join(f"~/.*{c}.{{15}}/" for c in "abcdefghij")
    yield "lark: complement of options", "start: X\nX: ~/" + "a?" * 3_000 + "/"
    yield "lark: intersections in a row", "start: X\nX: " + " & ".join(["/a*b?/"] * 20_000)
    yield "lark: terminals", "start: " + " | ".join(f"T{n}" for n in range(8_000)) + "\n" + "\n".join(f'T{n}: "{w}"' for n, w in enumerate(words(8_000, 8)))
    yield "lark: pattern terminals", "start: (" + " | ".join(f"T{n}" for n in range(3_000)) + ")*\n" + "\n".join(f"T{n}: /{w}[a-z]*/" for n, w in enumerate(words(3_000, 8)))
    yield "lark: unicode terminals", "start: (" + " | ".join(f"T{n}" for n in range(500)) + ")*\n" + "\n".join(f"T{n}: /\\p{{L}}{{1,{n + 1}}}/" for n in range(500))
    yield "lark: strings", "start: " + " | ".join(f'"{w}"' for w in words(20_000, 6))
    yield "lark: long string", 'start: "' + "a" * (LARGE - 100) + '"'
    yield "lark: ignored", 'start: "a"*\n%ignore /( ?\\n?){1,1000}/'
    yield "lark: json inside", 'start: %json {"type": "string", "pattern": "' + "a?" * 50_000 + '"}'
    yield "lark: many jsons", "start: " + " ".join(f"j{n}" for n in range(1_000)) + "\n" + "\n".join(f'j{n}: %json {{"type": "string", "maxLength": {n + 1000}}}' for n in range(1_000))
    yield "lark: lazy", "start: a*\na[lazy]: /.*/ \"b\""
    yield "lark: suffixes", 'start: a\na[suffix="x"]: /(.|\\n)*.{500}/'
    yield "lark: regex in reply", "start: (A | B | C)*\n" + "\n".join(f"{t}: /(.*{t}.{{12}})+/" for t in "ABC")
    yield "lark: substrings", "start: %regex {\"substring_chars\": \"" + "ab" * 50_000 + "\"}"
    yield "lark: substring words", "start: %regex {\"substring_words\": \"" + " ".join(words(20_000, 5)) + "\"}"
    yield "lark: comments", "start: \"a\"\n" + fill("// a\n")
    yield "lark: definitions again", "start: \"a\"\n" + "a: \"b\"\n" * 30_000


def gbnfs():
    """(name, grammar in GBNF)"""
    yield "gbnf: counted", 'root ::= "a"{1,100000}'
    yield "gbnf: counted and nested", "root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1}{{1,20}}" for n in range(12)) + '\nr12 ::= "a"?'
    yield "gbnf: classes", "root ::= " + "[a-z]? " * 30_000
    yield "gbnf: stars of stars", "root ::= " + "(" * 3_000 + '"a"' + "*)" * 3_000
    yield "gbnf: recursion", 'root ::= root root | root "a" root | "b"?'
    yield "gbnf: rules", "root ::= r0\n" + "\n".join(f'r{n} ::= "a" r{n + 1} | r{n + 1} "b"' for n in range(4_000)) + '\nr4000 ::= "x"'
    yield "gbnf: alternatives", "root ::= (" + " | ".join(f'"{w}"' for w in words(9_000, 16)) + ")*"
    yield "gbnf: dots", "root ::= " + ". " * 60_000
    yield "gbnf: negated", "root ::= ([^a] [^b]* [^c]?){1,500}"


def schemas():
    """(name, JSON Schema)"""
    text = {"type": "string"}
    yield "schema: pattern", {**text, "pattern": "^" + "a?" * 100_000 + "$"}
    yield "schema: patterns", {"type": "object", "properties": {f"p{n}": {**text, "pattern": "^" + f"[a-{chr(98 + n % 20)}]?" * 400 + "$"} for n in range(100)}}
    yield "schema: pattern and length", {**text, "pattern": "^([a-z]+-?){1,500}$", "maxLength": 4000}
    yield "schema: pattern and least length", {**text, "pattern": "^(a|b)*a(a|b){30}$", "minLength": 3000}
    yield "schema: pattern that is not anchored", {**text, "pattern": "a.{300}b"}
    yield "schema: patterns that all hold", {"allOf": [{**text, "pattern": f".*{c}.{{20}}"} for c in "abcdefghij"]}
    yield "schema: unicode pattern", {**text, "pattern": r"^\p{L}{1,1000}$", "minLength": 500}
    yield "schema: unicode classes", {**text, "pattern": fill(r"\p{L}?")}
    yield "schema: pattern properties", {"type": "object", "patternProperties": {f"^{'a?' * n}b$": {} for n in range(1, 250)}}
    yield "schema: pattern properties that differ", {"type": "object", "patternProperties": {f"^{w}.*$": text for w in words(2_000, 20)}}
    yield "schema: pattern property bomb", {"type": "object", "patternProperties": {"^" + "a?" * 60_000 + "$": {}}}
    many = {"type": "object", "patternProperties": {f"^{w}$": text for w in words(140, 600)}}
    yield "schema: pattern properties behind a reference", {"$ref": "#/x", "x": many}
    yield "schema: pattern properties in a tuple", {"type": "array", "items": [many]}
    few = {"type": "object", "patternProperties": {f"^{c}[0-9]+$": text for c in "abcd"}}
    yield "schema: pattern properties, merged", {"allOf": [few] + [{"anyOf": [{"type": "object"}, {"type": "object", "required": [c]}]} for c in "abcdefghijklmno"]}
    yield "schema: pattern property and a long name", {"type": "object", "patternProperties": {"^(a|b)*a(a|b){10000}$": text}, "required": ["ab" * 100_000]}
    for n in (10_000, 1_000_000, 4_000_000_000, 2**63):
        yield f"schema: minLength {n}", {**text, "minLength": n}
        yield f"schema: maxLength {n}", {**text, "maxLength": n}
        yield f"schema: minItems {n}", {"type": "array", "items": {"type": "integer"}, "minItems": n}
        yield f"schema: maxItems {n}", {"type": "array", "items": text, "maxItems": n}
    yield "schema: items nested", {"type": "array", "minItems": 30, "items": {"type": "array", "minItems": 30, "items": {"type": "array", "minItems": 30, "items": {"type": "array", "minItems": 30}}}}
    yield "schema: lengths", {"type": "object", "properties": {f"p{n}": {**text, "maxLength": 1000 + n} for n in range(1_500)}}
    yield "schema: enum of many", {"enum": list(words(19_000, 6))}
    yield "schema: enum of long", {"enum": list(words(250, 1_000))}
    yield "schema: enum of numbers", {"enum": list(range(19_000))}
    yield "schema: enum of objects", {"enum": [{"a": w, "b": [w]} for w in words(3_000, 20)]}
    yield "schema: enums", {"type": "object", "properties": {f"p{n}": {"enum": list(words(150, 20, n))} for n in range(100)}, "required": [f"p{n}" for n in range(100)]}
    yield "schema: const, long", {"const": "a" * LARGE}
    yield "schema: const, control characters", {"const": "\n" * 60_000}
    deep = text
    for _ in range(30):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    yield "schema: objects, deep", deep
    deep = text
    for _ in range(31):
        deep = {"anyOf": [deep, {"type": "null"}]}
    yield "schema: alternatives, deep", deep
    nested = [[]]
    for _ in range(20_000):
        nested = [nested]
    yield "schema: too deep", '{"enum": ' + "[" * 100_000 + "]" * 100_000 + "}"
    yield "schema: reference chain", {"$ref": "#/$defs/d0", "$defs": {**{f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(5_000)}, "d5000": text}}
    yield "schema: reference cycle", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    yield "schema: references doubled", {"$ref": "#/$defs/d0", "$defs": {**{f"d{n}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}, "b": {"$ref": f"#/$defs/d{n + 1}"}}, "required": ["a", "b"]} for n in range(60)}, "d60": text}}
    yield "schema: references all over", {"$ref": "#/$defs/d0", "$defs": {f"d{n}": {"type": "object", "properties": {f"p{m}": {"$ref": f"#/$defs/d{m}"} for m in range(60)}} for n in range(60)}}
    yield "schema: recursion that has no end", {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}}}
    yield "schema: wide recursion", {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "minItems": 5, "items": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "array", "minItems": 9, "items": {"$ref": "#/$defs/b"}}]}}, "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}}
    yield "schema: all of any", {"allOf": [{"anyOf": [{"properties": {f"p{n}{m}": text}} for m in range(4)]} for n in range(12)]}
    yield "schema: all of any of types", {"allOf": [{"anyOf": [{"type": "integer", "minimum": m * n} for m in range(8)]} for n in range(8)]}
    yield "schema: all of patterns of any", {"allOf": [{"anyOf": [{**text, "pattern": f"^{c}.*{n}"} for c in "abcdefgh"]} for n in range(6)]}
    yield "schema: any of many", {"anyOf": [{"type": "object", "properties": {w: text, "x": {"const": w}}, "required": [w, "x"]} for w in words(1_500, 12)]}
    yield "schema: one of many", {"oneOf": [{"type": "object", "properties": {"x": {"const": w}}, "required": ["x"]} for w in words(800, 12)]}
    yield "schema: properties", {"type": "object", "properties": {w: {"type": ["string", "integer", "null"]} for w in words(4_000, 20)}}
    yield "schema: required", {"type": "object", "properties": {w: text for w in words(4_000, 20)}, "required": list(words(4_000, 20))}
    yield "schema: no other properties", {"type": "object", "properties": {w: text for w in words(3_000, 40)}, "additionalProperties": {"type": "integer"}}
    yield "schema: counted properties", {"type": "object", "properties": {f"p{n}": text for n in range(300)}, "maxProperties": 200}
    yield "schema: counted open properties", {"type": "object", "additionalProperties": text, "maxProperties": 1_000_000}
    yield "schema: multipleOf", {"type": "integer", "multipleOf": 999_999_937}
    yield "schema: multipleOf, fine", {"type": "number", "multipleOf": 0.000000001}
    yield "schema: multiples", {"allOf": [{"type": "integer", "multipleOf": n} for n in (2, 3, 5, 7, 11, 13, 17, 19, 23)]}
    yield "schema: many ranges", {"type": "object", "properties": {f"p{n}": {"type": "number", "minimum": -n * 1.0001e9, "maximum": n * 1.00234567e9} for n in range(2_000)}}
    yield "schema: formats", {"type": "object", "properties": {f"p{n}": {**text, "format": f} for n in range(300) for f in ["date-time"]}}
    yield "schema: format and length", {**text, "format": "email", "maxLength": 4000, "minLength": 2000}
    yield "schema: prefix items", {"type": "array", "prefixItems": [{**text, "maxLength": n + 1} for n in range(2_000)]}
    yield "schema: look-ahead", {**text, "pattern": "^" + fill("(?=.*a)", 100 * KIB) + "x"}
    yield "schema: look-aheads that all need states", {**text, "pattern": "^" + "".join(f"(?!.*{a}{b}.{{9}}{a})" for a in "abcdefgh" for b in "abcdefgh") + ".*$"}
    yield "schema: look-ahead and a count", {**text, "pattern": r"(?:(?!ab)[a-z]{1,60}\b){1,60}c(?<=[a-c]{20})"}
    yield "schema: look-aheads in properties", {"type": "object", "properties": {f"p{n}": {**text, "pattern": rf"(?<!{w})\b{w}\b(?!{w})"} for n, w in enumerate(words(2_000, 9))}}
    yield "schema: anchors in a row", {**text, "pattern": "(^|a)" * 40 + "b" + "($|c)" * 40}
    yield "schema: word boundaries", {**text, "pattern": r"(?:\ba)?" * 80}
    yield "schema: unicode conditions", {**text, "pattern": "".join(rf"(?!\p{{{c}}})[\p{{L}}\p{{N}}]" for c in ("Lu", "Ll", "Nd", "Han", "Greek", "Thai")) + r"(?<!\p{M})$"}
    yield "schema: branches that meet", {"type": "object", "oneOf": [{"required": [f"a{n}", f"b{n % 7}"]} for n in range(64)]}
    yield "schema: branches that meet, nested", {"oneOf": [{"anyOf": [{"oneOf": [{"properties": {f"a{n}{m}{k}": {"type": "integer"}}} for n in range(8)]} for m in range(8)]} for k in range(8)]}
    yield "schema: branches of enumerations", {"oneOf": [{"enum": list(words(900, 6, n + 1))} for n in range(20)]}
    yield "schema: branches of patterns", {"oneOf": [{**text, "pattern": rf"^(?:a|b)*{c}(?:a|b){{9}}$"} for c in "abcdefghijklmnopqrstuvwxyz"]}
    union = {"oneOf": [{"$ref": f"#/$defs/d{n}"} for n in range(40)]}
    yield "schema: union of itself", {**union, "$defs": {f"d{n}": {"type": "object", "properties": {"k": {"const": n}, **{f"c{m}": union for m in range(9)}}} for n in range(40)}}
    yield "schema: not of not", json.dumps({"not": 1}).replace("1", '{"not": {"anyOf": [{"required": ["a"]}, ' * 25 + "true" + "]}}" * 25)
    yield "schema: not an enumeration", {"not": {"enum": list(words(5_000, 12))}}
    yield "schema: conditions", {"type": "object", "allOf": [{"if": {"properties": {"k": {"const": n}}, "required": ["k"]}, "then": {"required": [f"p{n}"]}} for n in range(60)]}
    yield "schema: names", {"type": "object", "properties": {w: text for w in words(3_000, 30)}, "propertyNames": {"pattern": "^(?!.*abc)[a-z]+[0-9]*$"}, "additionalProperties": text}
    yield "schema: names of an enumeration", {"type": "object", "propertyNames": {"enum": list(words(10_000, 6))}, "additionalProperties": text}
    yield "schema: distinct", {"type": "array", "items": {"enum": list(words(10_000, 6))}, "uniqueItems": True}
    yield "schema: distinct, listed", {"type": "object", "properties": {f"p{n}": {"type": "array", "items": {"enum": list(range(8))}, "uniqueItems": True} for n in range(200)}}
    yield "schema: whitespace", {"style": r"(( ?\n?){1,500}\t?){1,500}", "type": "object", "properties": {f"p{n}": text for n in range(100)}}


def bodies():
    """(name, path, body): every case once."""

    def completion(**fields):
        return "/v1/completions", {"prompt": "x", "max_tokens": 64, "temperature": 1, "seed": 5, **fields}

    for name, pattern in regexes():
        yield name, *completion(regex=pattern)
    for name, grammar in larks():
        yield name, *completion(grammar=grammar)
    for name, grammar in gbnfs():
        yield name, *completion(grammar=grammar)
    for name, schema in schemas():
        if isinstance(schema, str):
            path, body = completion(json_schema="SCHEMA")
            yield name, path, json.dumps(body).replace('"SCHEMA"', schema)
            continue
        style = schema.pop("style", None)
        wanted = {"json": schema, **({"whitespace_pattern": style} if style else {})}
        yield name, *completion(structured_outputs=wanted)
    yield "choices", *completion(structured_outputs={"choice": list(words(9_999, 18))})
    yield "choices, long", *completion(structured_outputs={"choice": list(words(60, 4_000))})
    yield "choices of prefixes", *completion(structured_outputs={"choice": ["a" * n for n in range(1, 700)]})
    tools = [
        {"type": "function", "function": {"name": f"f{n}", "parameters": {"type": "object", "properties": {f"p{m}": {"type": "string", "pattern": "^" + "a?" * 500 + "$"} for m in range(20)}}}}
        for n in range(50)
    ]
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 200, "tools": tools, "tool_choice": "required"}
    yield "tools with patterns", "/v1/chat/completions", chat
    tags = {"type": "structural_tag", "triggers": ["<"], "structures": [{"begin": f"<{w}>", "schema": {"type": "string", "pattern": "^" + "a?" * 900 + "$"}, "end": f"</{w}>"} for w in words(128, 10)]}
    yield "tags with patterns", "/v1/chat/completions", {"messages": chat["messages"], "max_tokens": 64, "response_format": tags}


def resident_mb(pid):
    try:
        with open(f"/proc/{pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) / 1024
    except (OSError, TypeError):
        print("FAULT the server has ended", flush=True)
        os._exit(1)


class Memory:
    """Looks at the resident memory twenty times a second."""

    def __init__(self, pid):
        self.pid, self.most, self.ended = pid, 0.0, threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while not self.ended.wait(0.05):
            try:
                self.most = max(self.most, resident_mb(self.pid))
            except OSError:
                return

    def peak(self):
        """The most since the last call."""
        most, self.most = max(self.most, resident_mb(self.pid)), 0.0
        return most


def post(url, path, body, timeout):
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    begun = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            status, text = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    except OSError as error:
        status, text = 0, str(error)
    return status, text, time.monotonic() - begun


class Side(threading.Thread):
    """Another client: a small schema of its own every second."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.url, self.ended, self.answers = url, threading.Event(), []

    def run(self):
        number = 0
        while not self.ended.wait(1):
            number += 1
            schema = {"type": "object", "properties": {f"a{number}": {"type": "integer"}}, "required": [f"a{number}"]}
            body = {"prompt": "x", "max_tokens": 40, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
            status, text, seconds = post(self.url, "/v1/completions", body, 60)
            self.answers.append((status, seconds, text if status != 200 else ""))


def summary(text):
    try:
        answer = json.loads(text)
    except ValueError:
        return text[:150]
    if "error" in answer:
        return (answer["error"].get("message") or "")[:150]
    choice = answer["choices"][0]
    return f"{choice['finish_reason']}: {str(choice.get('text') or choice.get('message'))[:60]!r}"


def attack(url, pid, cases, at_once, memory, start, verbose):
    faults = []
    statuses = {}

    def one(case):
        name, path, body = case
        status, text, seconds = post(url, path, body, 120)
        statuses[status] = statuses.get(status, 0) + 1
        if verbose:
            print(f"{seconds:6.2f} s  {resident_mb(pid) - start:+7.0f} MB  {status}  {name}: {summary(text)}", flush=True)
        if status not in (200, 400):
            faults.append(f"{name}: status {status}: {text[:200]}")
        return seconds, name

    begun = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        times = list(pool.map(one, cases))
    took = time.monotonic() - begun
    peak = memory.peak()
    time.sleep(3)
    left = resident_mb(pid)
    slowest = sorted(times, reverse=True)[:3]
    print(f"{len(cases)} cases, {at_once} at once: {took:.0f} s, answers {statuses}; memory at most {peak - start:+.0f} MB, then {left - start:+.0f} MB; slowest " + ", ".join(f"{s:.1f} s ({n})" for s, n in slowest), flush=True)
    if peak - start > MOST_MB:
        faults.append(f"memory rose by {peak - start:.0f} MB, at most {MOST_MB} are allowed")
    if left - start > LEFT_MB:
        faults.append(f"{left - start:.0f} MB more than before are left, at most {LEFT_MB} are allowed")
    faults += [f"{name}: answered after {seconds:.1f} s" for seconds, name in times if seconds > TIMEOUT_S + 1]
    return faults


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("server", nargs="?", help="the server's binary, or the URL of one that runs")
    arguments.add_argument("pid", nargs="?", type=int, help="its process, where a URL is given")
    arguments.add_argument("--only", default="")
    arguments.add_argument("--list", action="store_true")
    arguments.add_argument("--verbose", action="store_true")
    arguments.add_argument("--at-once", default="1,8", help="how many at once, of each round")
    options = arguments.parse_args()
    cases = [case for case in bodies() if options.only in case[0]]
    if options.list:
        print("\n".join(name for name, _, _ in cases))
        print(len(cases), "cases")
        return 0
    server = None
    if options.server.startswith("http"):
        url, pid = options.server, options.pid
    else:
        server = Server(options.server)
        url, pid = server.url, server.process.pid
    warm = {"prompt": "x", "max_tokens": 40, "json_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    status, text, _ = post(url, "/v1/completions", warm, 60)
    if status != 200:
        raise SystemExit(f"the first request was answered {status}: {text[:300]}")
    start = resident_mb(pid)
    print(f"start: {start:.0f} MB", flush=True)
    memory, side = Memory(pid), Side(url)
    side.start()
    faults = []
    for at_once in options.at_once.split(","):
        faults += attack(url, pid, cases, int(at_once), memory, start, options.verbose)
    side.ended.set()
    side.join()
    seconds = sorted(seconds for _, seconds, _ in side.answers) or [0.0]
    print(f"others: {len(side.answers)} requests, median {seconds[len(seconds) // 2]:.2f} s, slowest {seconds[-1]:.2f} s")
    faults += [f"another client's request was answered {status} after {s:.1f} s: {text[:200]}" for status, s, text in side.answers if status != 200]
    memory.ended.set()
    if server:
        server.stop()
    for fault in faults:
        print("FAULT", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
