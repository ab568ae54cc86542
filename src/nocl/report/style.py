"""The page's style sheet: readable on a phone, light and dark, nothing fetched from anywhere."""

from nocl.report.svg import COLOURS

# fmt: off
_LIGHT = [
    "#0b62b8", "#d1590a", "#1a8a4a", "#b3261e", "#7a4fc4",
    "#8a5a2b", "#cc3f9b", "#59636e", "#8f8a00", "#0a93a8",
]
_DARK = [
    "#5aa9f5", "#ff9a4d", "#4fcf86", "#ff7a70", "#b494f5",
    "#cf9f6f", "#f58ad0", "#a8b3bf", "#d6cf3f", "#4fd3e6",
]
# fmt: on
assert len(_LIGHT) == len(_DARK) == COLOURS

_SHEET = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
 font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;-webkit-text-size-adjust:100%}
main{max-width:1280px;margin:0 auto;padding:20px 16px 64px}
h1{font-size:1.6rem;line-height:1.2;margin:.4em 0 .2em}h2{font-size:1.2rem;margin:2em 0 .5em}
h3{font-size:.95rem;margin:0 0 .4em}p{margin:.5em 0}.quiet{color:var(--soft);font-size:.88rem}
a{color:var(--c0)}
.scroll{overflow-x:auto;border:1px solid var(--rule);border-radius:10px;background:var(--card);
 -webkit-overflow-scrolling:touch}
table{border-collapse:collapse;width:100%;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:7px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}
tr:last-child td{border-bottom:0}th{font-weight:600;color:var(--soft);vertical-align:bottom}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--card)}
table.wide th:first-child,table.wide td:first-child{white-space:normal;min-width:clamp(120px,17vw,190px);
 max-width:280px;overflow-wrap:anywhere}
td.acc{font-weight:600;background:linear-gradient(90deg,var(--meter) var(--share),transparent var(--share))}
tr.unfinished td{color:var(--soft);font-style:italic}
.swatch{width:26px;height:8px;flex:none;vertical-align:middle;margin-right:6px}
figure{margin:16px 0 0}figcaption{color:var(--soft);font-size:.85rem;margin-top:4px}
svg{display:block;width:100%;height:auto;overflow:visible}svg.swatch{display:inline-block}
.card{border:1px solid var(--rule);border-radius:10px;background:var(--card);padding:12px}
.chart{display:grid;gap:12px}
.legend{list-style:none;margin:0;padding:0;display:grid;gap:0 14px;align-content:start;font-size:.85rem;
 grid-template-columns:repeat(auto-fill,minmax(150px,1fr))}
.legend li{display:flex;align-items:center;gap:2px;padding:3px 4px;border-radius:6px;min-width:0}
.legend li:hover,.legend li:focus{background:var(--rule);outline:0}
.legend span{overflow-wrap:anywhere;line-height:1.25;flex:1}.legend b{font-weight:600;margin-left:4px}
@media(min-width:820px){.chart svg text{font-size:7.5px}.chart svg text.axis{font-size:8px}
 .chart>svg{max-width:840px;justify-self:center}
 .chart.few{grid-template-columns:3fr 1fr}.chart.few .legend{grid-template-columns:1fr}}
.pair{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));align-items:start}
.pair>*{min-width:0}
.line{fill:none;stroke-width:2;vector-effect:non-scaling-stroke;stroke-linejoin:round;stroke-linecap:butt}.band{opacity:.13}.band.hidden{opacity:0}
.grid{stroke:var(--rule);stroke-width:1;fill:none}
svg text{font-size:11px;fill:var(--soft);font-family:inherit}svg text.axis{font-size:12px}
.heat{fill:var(--c0)}.unseen{fill:none;stroke:var(--rule);stroke-dasharray:2 2}
svg text.strong{fill:var(--card)}svg text.weak{fill:var(--ink)}.bar{fill:var(--c0)}
.kind0{fill:var(--c2)}.kind1{fill:var(--c7)}.kind2{fill:var(--c1)}
.keys{display:flex;flex-wrap:wrap;gap:4px 14px;font-size:.85rem;color:var(--soft);margin:0 0 6px}
.keys i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px}
details{border:1px solid var(--rule);border-radius:10px;background:var(--card);margin:10px 0}
summary{cursor:pointer;padding:10px 12px;font-weight:600;overflow-wrap:anywhere}
summary small{font-weight:400;color:var(--soft);display:block}
details>div{padding:0 12px 14px;display:grid;gap:14px}details .scroll{background:none}
.tag{display:inline-block;border:1px solid var(--rule);border-radius:999px;padding:1px 9px;margin:0 4px 4px 0;
 font-size:.8rem;color:var(--soft);font-weight:400}.tag.warn{color:var(--c3);border-color:var(--c3)}
dl{display:grid;grid-template-columns:minmax(84px,max-content) 1fr;gap:3px 12px;margin:0;font-size:.85rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere;min-width:0}
dd.long{max-height:7.5em;overflow:auto}
@media print{details>div{display:grid}body{background:#fff}}
"""


def _variables(colours: list[str], others: str) -> str:
    return "".join(f"--c{index}:{colour};" for index, colour in enumerate(colours)) + others


def style(series: int) -> str:
    """The sheet, with rules that bring out one of so many lines while it or its name is pointed at."""
    light = "--page:#f6f7f9;--card:#fff;--ink:#1a1d21;--soft:#5b6570;--rule:#e1e5ea;--meter:#0b62b81f"
    dark = "--page:#101317;--card:#181c22;--ink:#e8ebef;--soft:#9aa5b1;--rule:#2b323b;--meter:#5aa9f52e"
    picked = "".join(
        f".chart:has(.k{k}:hover,.k{k}:focus) .s:not(.k{k}){{opacity:.1}}"
        f".chart:has(.k{k}:hover,.k{k}:focus) .k{k} .band{{opacity:.2}}"
        for k in range(series)
    )
    return (
        f":root{{color-scheme:light dark;{_variables(_LIGHT, light)}}}"
        f"@media(prefers-color-scheme:dark){{:root{{{_variables(_DARK, dark)}}}}}{_SHEET}{picked}"
    )
