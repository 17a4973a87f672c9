"""Simple pictures, drawn anew for every use, and questions about them: the colour, the shape, the count, the digit.

A picture is described by its parameters; `draw` turns them into pixels. The split is by hash of the parameters.
"""

import colorsys
import math
import random

import numpy
from PIL import Image, ImageDraw

import split

# Name -> hue in degrees (from, to), saturation, value.
COLOURS = {
    "red": ((-8, 8), (0.8, 1.0), (0.75, 1.0)),
    "orange": ((25, 36), (0.9, 1.0), (0.95, 1.0)),
    "yellow": ((52, 60), (0.8, 1.0), (0.9, 1.0)),
    "green": ((100, 145), (0.65, 1.0), (0.45, 0.85)),
    "blue": ((210, 240), (0.75, 1.0), (0.65, 1.0)),
    "purple": ((270, 288), (0.65, 1.0), (0.5, 0.8)),
    "pink": ((320, 340), (0.3, 0.55), (0.95, 1.0)),
    "black": ((0, 360), (0.0, 0.3), (0.0, 0.14)),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "heart")
COUNTS = (1, 2, 3, 4, 5)
DIGITS = tuple(range(10))
SKILLS = ("colour", "shape", "count", "digit")
SQUARE = 28  # pixels a side of what becomes one token
SMOOTH = 3  # pixels drawn for one that is kept
FAR = 120  # between a colour and its background

ASK = ("What is the {}?", "What's the {}?", "What {} is it?", "Which {} is it?", "Tell me the {}.", "What {} do you see?", "What {} is this?")
ASK_COLOUR = ("What {} is the shape?", "What {} is the {shape}?")
ASK_COUNT = ("How many shapes are there?", "How many shapes do you see?", "How many are there?", "Count the shapes.", "What is the count?")
ASKED = {  # of a picture of this kind, how often
    "shape": {"colour": 65, "shape": 35},
    "count": {"count": 82, "colour": 15, "shape": 3},
    "digit": {"digit": 88, "colour": 12},
}

# Strokes of the digits in a box of 1 by 2: lines are lists of points, arcs are (x, y, rx, ry, from, to) in degrees, clockwise from the right.
STROKES = {
    0: ([(0.5, 1.0, 0.5, 1.0, 0, 360)],),
    1: ([[(0.15, 0.45), (0.55, 0.0), (0.55, 2.0)]], [[(0.5, 0.0), (0.5, 2.0)], [(0.15, 0.35), (0.5, 0.0)], [(0.1, 2.0), (0.9, 2.0)]]),
    2: ([(0.5, 0.55, 0.5, 0.55, 180, 385), [(0.953, 0.78), (0.0, 2.0), (1.0, 2.0)]],),
    3: ([(0.45, 0.5, 0.5, 0.5, 200, 450), (0.45, 1.48, 0.55, 0.52, 270, 520)], [[(0.05, 0.0), (0.95, 0.0), (0.45, 0.8)], (0.42, 1.4, 0.58, 0.6, 270, 510)]),
    4: ([[(0.75, 2.0), (0.75, 0.0), (0.0, 1.35), (1.0, 1.35)]], [[(0.1, 0.0), (0.05, 1.1), (1.0, 1.1)], [(0.8, 0.5), (0.8, 2.0)]]),
    5: ([[(0.9, 0.0), (0.15, 0.0), (0.1, 0.85)], (0.43, 1.37, 0.57, 0.63, 235, 510)],),
    6: ([(0.5, 1.42, 0.5, 0.58, 0, 360), [(0.03, 1.3), (0.25, 0.65), (0.75, 0.0)]], [(0.5, 1.45, 0.5, 0.55, 0, 360), (0.75, 1.3, 0.75, 1.3, 180, 275)]),
    7: ([[(0.0, 0.0), (1.0, 0.0), (0.4, 2.0)]], [[(0.0, 0.0), (1.0, 0.0), (0.4, 2.0)], [(0.35, 1.0), (0.9, 1.0)]]),
    8: ([(0.5, 0.48, 0.43, 0.48, 0, 360), (0.5, 1.48, 0.5, 0.52, 0, 360)],),
    9: ([(0.5, 0.58, 0.5, 0.58, 0, 360), [(0.97, 0.7), (0.75, 1.35), (0.25, 2.0)]], [(0.5, 0.55, 0.5, 0.55, 0, 360), [(1.0, 0.55), (0.95, 2.0)]]),
}


def rgb(hue, saturation, value):
    return tuple(round(255 * part) for part in colorsys.hsv_to_rgb(hue % 360 / 360, saturation, value))


def colours(rng):
    """A colour's name, its pixel, and the pixel of a background that is far enough from it."""
    name = rng.choice(list(COLOURS))
    ink = rgb(*(rng.uniform(*part) for part in COLOURS[name]))
    while True:
        kind = rng.random()
        if kind < 0.45:
            ground = rgb(rng.uniform(0, 360), rng.uniform(0, 0.06), rng.uniform(0.9, 1.0))
        elif kind < 0.6:
            ground = (255, 255, 255)
        elif kind < 0.75:
            ground = rgb(rng.uniform(0, 360), rng.uniform(0.05, 0.2), rng.uniform(0.85, 1.0))
        elif kind < 0.85:
            ground = rgb(rng.uniform(0, 360), rng.uniform(0, 0.1), rng.uniform(0.5, 0.85))
        else:
            ground = rgb(rng.uniform(0, 360), rng.uniform(0, 0.4), rng.uniform(0.0, 0.2))
        if math.dist(ink, ground) > FAR:
            return name, ink, ground


def size(rng, tokens):
    """The width or height of a picture that takes so many tokens a side."""
    return tokens * SQUARE if rng.random() < 0.5 else rng.randint((tokens - 1) * SQUARE + 1, tokens * SQUARE)


def places(rng, count, width, height):
    """Centres and radii of shapes of about one size that do not touch."""
    short = min(width, height)
    most = {1: 0.46, 2: 0.27, 3: 0.24, 4: 0.21, 5: 0.19}[count] * short
    radius = rng.uniform(max(0.5 * most, 7 if count > 1 else 10), most)
    while True:
        for _ in range(20):
            result = []
            for _ in range(30):
                r = radius * rng.uniform(0.88, 1.0)
                x, y = rng.uniform(r + 1, width - r - 1), rng.uniform(r + 1, height - r - 1)
                if all(math.dist((x, y), other[:2]) > r + other[2] + 3 for other in result):
                    result.append((round(x, 1), round(y, 1), round(r, 1)))
                    if len(result) == count:
                        return result
        radius *= 0.93


def parameters(rng, kind, columns, rows):
    """A picture of one shape ("shape"), of several equal ones ("count"), or of a digit; so many tokens wide and high."""
    width, height = size(rng, columns), size(rng, rows)
    colour, ink, ground = colours(rng)
    result = {"kind": kind, "width": width, "height": height, "colour": colour, "ink": ink, "ground": ground}
    result["noise"] = round(rng.uniform(1, 5), 1) if rng.random() < 0.3 else 0
    result["seed"] = rng.getrandbits(32)
    if kind == "digit":
        digit = rng.choice(DIGITS)
        tall = rng.uniform(max(0.4, 26 / min(width, height)), 0.88) * min(width, height)
        wide = tall * rng.uniform(0.42, 0.66)
        x, y = (rng.uniform(part, side - part) for part, side in ((0.5 * wide + 0.12 * tall, width), (0.53 * tall, height)))
        result |= {"digit": digit, "variant": rng.randrange(len(STROKES[digit])), "box": [round(part, 1) for part in (x, y, wide, tall)]}
        result |= {"line": round(rng.uniform(0.07, 0.17), 3), "turn": round(rng.uniform(-10, 10), 1), "slant": round(rng.uniform(-0.05, 0.2), 2)}
    else:
        result["shape"] = rng.choice(SHAPES)
        result["places"] = places(rng, rng.choice(COUNTS[1:]) if kind == "count" else 1, width, height)
        tilt = 180 if result["shape"] == "star" else 20 if rng.random() < 0.5 else 0
        result["turns"] = [round(rng.uniform(-tilt, tilt)) for _ in result["places"]]
    return result


def picture(rng, part, kind, columns, rows):
    """The parameters of a picture of the split "train" or "heldout"."""

    def make():
        made = parameters(rng, kind, columns, rows)
        return f"picture:{made}", made

    return split.draw(part, make)


def outline(shape):
    """The corners of a shape about the origin, within a radius of 1."""
    if shape == "square":
        corners = [(-1, -1), (1, -1), (1, 1), (-1, 1)]
        return [(0.8 * x, 0.8 * y) for x, y in corners]
    if shape == "triangle":
        return [(math.sin(turn), 0.2 - math.cos(turn)) for turn in (0, 2 * math.pi / 3, 4 * math.pi / 3)]
    if shape == "star":
        return [((1, 0.42)[i % 2] * math.sin(i * math.pi / 5), -(1, 0.42)[i % 2] * math.cos(i * math.pi / 5)) for i in range(10)]
    if shape == "cross":
        a, b = 0.3, 0.92
        return [(-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a), (-b, -a), (-a, -a)]
    if shape == "heart":
        turns = [2 * math.pi * i / 48 for i in range(48)]
        return [(math.sin(t) ** 3, -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 17) for t in turns]
    return [(math.cos(math.pi * i / 32), math.sin(math.pi * i / 32)) for i in range(64)]


def turned(points, degrees):
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [(x * cos - y * sin, x * sin + y * cos) for x, y in points]


def stroke(part):
    if isinstance(part, list):
        return part
    x, y, rx, ry, start, end = part
    turns = [math.radians(start + (end - start) * i / 40) for i in range(41)]
    return [(x + rx * math.cos(t), y + ry * math.sin(t)) for t in turns]


def draw(p):
    """The picture as bytes [height, width, 3]."""
    image = Image.new("RGB", (p["width"] * SMOOTH, p["height"] * SMOOTH), tuple(p["ground"]))
    canvas, ink = ImageDraw.Draw(image), tuple(p["ink"])
    if p["kind"] == "digit":
        x, y, wide, tall = (SMOOTH * part for part in p["box"])
        line = p["line"] * tall
        for part in STROKES[p["digit"]][p["variant"]]:
            points = [((a - 0.5) * (wide - line) - p["slant"] * (b - 1) * tall / 2, (b - 1) * (tall - line) / 2) for a, b in stroke(part)]
            points = [(x + a, y + b) for a, b in turned(points, p["turn"])]
            canvas.line(points, ink, round(line), "curve")
            for a, b in (points[0], points[-1]):
                canvas.ellipse((a - line / 2, b - line / 2, a + line / 2, b + line / 2), ink)
    else:
        for (x, y, radius), turn in zip(p["places"], p["turns"]):
            canvas.polygon([(SMOOTH * (x + radius * a), SMOOTH * (y + radius * b)) for a, b in turned(outline(p["shape"]), turn)], ink)
    pixels = numpy.asarray(image.reduce(SMOOTH))
    if p["noise"]:
        noise = numpy.random.default_rng(p["seed"]).normal(0, p["noise"], pixels.shape)
        pixels = (pixels + noise).round().clip(0, 255).astype(numpy.uint8)
    return pixels


def talk(rng, p, skill):
    """A question about a picture and the reply. The words are those in which the model already recalls what it was told."""
    thing, value = skill, p.get(skill)
    if skill == "colour":
        thing = rng.choice(("colour", "color"))
        ask = rng.choice(ASK + ASK_COLOUR).format(thing, shape=p.get("shape", "digit"))
    elif skill == "count":
        value, ask = len(p["places"]), rng.choice(ASK_COUNT)
    else:
        ask = rng.choice(ASK).format(skill)
    return ask, f"The {thing} is {value}."


def sample(path):
    """A sheet of held-out pictures, to look at."""
    rng = random.Random(3)
    sheet = Image.new("RGB", (10 * 120, 6 * 120), "gray")
    for i in range(60):
        p = picture(rng, "heldout", ("shape", "count", "digit")[i // 20], 4, 4)
        sheet.paste(Image.fromarray(draw(p)), (i % 10 * 120, i // 10 * 120))
    sheet.save(path)


if __name__ == "__main__":
    sample("pictures.png")
