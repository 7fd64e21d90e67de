"""Pictures for the documentation, drawn by tests: a terminal's screen as SVG, a page as PNG.

`scripts/pictures` runs these tests with UXFRM_PICTURES=docs/images, where they are kept then.
Without it each test draws its picture and keeps nothing.
"""

import html
import os
import pathlib

from topology import HERE

WIDTH, HEIGHT = 8.4, 18  # of a cell, for a font of 14 pixels
COLOURS = {
    "default": "#d8dee9",
    "black": "#3b4252",
    "red": "#f0717a",
    "green": "#a3d977",
    "brown": "#f0c674",
    "blue": "#81a1c1",
    "magenta": "#c792ea",
    "cyan": "#88d0e0",
    "white": "#eceff4",
}
BACKGROUND = "#1b2129"
# The first of the 256 colours, as pyte has them.
BY_NUMBER = {
    "000000": "black",
    "cd0000": "red",
    "00cd00": "green",
    "cdcd00": "brown",
    "0000ee": "blue",
    "cd00cd": "magenta",
    "00cdcd": "cyan",
    "e5e5e5": "white",
}


def keep(name, content):
    """Writes a picture where they are collected, if anybody asked for it."""
    directory = os.environ.get("UXFRM_PICTURES")
    if directory:
        pathlib.Path(directory, name).write_bytes(content)


def svg(screen):
    """A pyte screen: a line of text a run of equal cells."""
    parts = []
    for number in range(screen.lines):
        for column, cells in runs(screen.buffer[number], screen.columns):
            parts.append(text(number, column, cells))
    width, height = round(screen.columns * WIDTH + 24), round(screen.lines * HEIGHT + 24)
    body = "\n".join(part for part in parts if part)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="uxfrm top">\n<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>\n'
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono, monospace" font-size="14">\n{body}\n</g>\n</svg>\n'
    )


def runs(line, columns):
    """Neighbouring cells that look alike, with the first one's column."""
    begin = 0
    for column in range(1, columns + 1):
        if column == columns or look(line[column]) != look(line[begin]):
            yield begin, [line[place] for place in range(begin, column)]
            begin = column


def look(cell):
    return cell.fg, cell.bg, cell.bold, cell.reverse


def text(number, column, cells):
    words, (front, _, bold, reverse) = "".join(cell.data for cell in cells), look(cells[0])
    colour = COLOURS.get(BY_NUMBER.get(front, front), COLOURS["default"])
    left, top, width = 12 + column * WIDTH, 12 + number * HEIGHT, len(cells) * WIDTH
    back = f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{HEIGHT}" fill="{colour}"/>' if reverse else ""
    if not words.strip():
        return back
    weight = ' font-weight="bold"' if bold else ""
    fill = BACKGROUND if reverse else colour
    return f'{back}<text x="{left:.1f}" y="{top + 13}" textLength="{width:.1f}" fill="{fill}"{weight}>{escaped(words)}</text>'


def escaped(words):
    """Blanks stay as many as they are."""
    return html.escape(words).replace(" ", "\u00a0")


# Other ends, which are not there, with what their states are limited by.
PEERS = {11: "limit time-hard 3600", 12: "limit time-hard 28800", 13: "limit byte-hard 40000000000", 14: ""}


def idle_tunnels():
    """`ip xfrm` lines of tunnels that a picture has beside those with traffic."""
    for place, limit in PEERS.items():
        peer, net, key = f"10.9.0.{place}", f"10.{place}.0.0/16", f"0x{place:02x}{'5a' * 19}"
        tunnel = f"proto esp reqid {place} mode tunnel"
        for source, destination, spi in ((HERE.outer[4], peer, 0x1000 + place), (peer, HERE.outer[4], 0x2000 + place)):
            yield f"xfrm state add src {source} dst {destination} proto esp spi {spi:#x} reqid {place} mode tunnel aead rfc4106(gcm(aes)) {key} 128 {limit}"
        yield f"xfrm policy add src 10.1.0.0/16 dst {net} dir out tmpl src {HERE.outer[4]} dst {peer} {tunnel}"
        yield f"xfrm policy add src {net} dst 10.1.0.0/16 dir in tmpl src {peer} dst {HERE.outer[4]} {tunnel}"
