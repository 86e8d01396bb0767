"""Pictures for the pages: SVG that is readable on a white page and on a dark one. There is no background, and text is
of a grey whose contrast to both is 4 to 1 or more: an <img> does not know which of the two the page is."""
import colorsys
import html

TEXT, LINES = "#747b84", "#8a8f98"
COLORS = ["#3b76e8", "#d97706", "#12a171", "#a35bd6", "#d6457a", "#0e9aa7", "#8a7a1f", "#9c6b4f"]
TEXT_WIDTH = 0.6  # of a character of sans-serif on average, in units of the font's size; rather too large


def colors(count):
    """So many colours: those above, or, if these are too few, as many hues at equal distances."""
    if count <= len(COLORS):
        return COLORS[:count]
    hues = (colorsys.hls_to_rgb(i / count, 0.48, 0.7) for i in range(count))
    return ["#" + "".join(f"{round(255 * part):02x}" for part in hue) for hue in hues]


def text_width(text, size):
    return TEXT_WIDTH * size * len(text)


def text(x, y, content, anchor="start", color=""):
    at = ("" if anchor == "start" else f' text-anchor="{anchor}"') + (f' fill="{color}"' if color else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{at}>{html.escape(content)}</text>'


def box(x, y, width, height, color, opacity=1):
    see_through = "" if opacity == 1 else f' opacity="{opacity}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"{see_through}/>'


def line(points, color, width, opacity=1, dash=""):
    places = " ".join(f"{x:.1f},{y:.1f}".replace(".0", "") for x, y in points)
    more = ("" if opacity == 1 else f' opacity="{opacity}"') + (f' stroke-dasharray="{dash}"' if dash else "")
    return (f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="{width:g}" '
            f'stroke-linejoin="round"{more}/>')


def area(points, color, opacity=1):
    places = " ".join(f"{x:.1f},{y:.1f}".replace(".0", "") for x, y in points)
    return f'<polygon points="{places}" fill="{color}" opacity="{opacity}"/>'


def dot(x, y, radius, color, opacity=1):
    see_through = "" if opacity == 1 else f' opacity="{opacity}"'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{color}"{see_through}/>'


def ring(x, y, radius, color):
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="none" stroke="{color}" stroke-width="1.3"/>'


def picture(width, height, size, parts):
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="sans-serif" font-size="{size}" fill="{TEXT}">')
    return "\n".join([head, *parts, "</svg>", ""])
