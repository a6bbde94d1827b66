"""The page's style sheet and script: plain text, no library but the charts'."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --ground: #ffffff; --card: #f6f8fa; --line: #d0d7de;
  --link: #0550ae; --good: #0a5c3c; --good-ground: #d6f2e4; --bad: #8a3300; --bad-ground: #ffe3d3;
  --open: #4a4f57; --open-ground: #e7eaee; --target: #fff4c2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #a3adb8; --ground: #12161b; --card: #1b2129;
  --line: #39424d; --link: #7db7ff; --good: #9be8c4; --good-ground: #10392a; --bad: #ffb78f; --bad-ground: #47220f;
  --open: #c6ccd4; --open-ground: #2c343e; --target: #4a4113; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 1rem; }
body { margin: 0 auto; max-width: 76rem; padding: 1.2rem clamp(0.8rem, 3vw, 2rem) 4rem; background: var(--ground);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.4rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 2.4rem 0 0.6rem; padding-top: 0.6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.08rem; margin: 1.6rem 0 0.4rem; }
h2, h3, h4, p, li, td, th, summary { overflow-wrap: anywhere; }
p { margin: 0.4rem 0; max-width: 46rem; }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; padding: 0; list-style: none; }
.note { border-left: 3px solid var(--line); padding-left: 0.8rem; }
small, .soft { color: var(--soft); font-size: 0.86rem; }
code { font: 0.86em ui-monospace, "SFMono-Regular", Menlo, "DejaVu Sans Mono", monospace; }
.scroll { overflow-x: auto; margin: 0.5rem 0 1rem; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; font-size: 0.86rem; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.3rem 0.6rem; vertical-align: top; border-bottom: 1px solid var(--line); }
td { overflow-wrap: normal; }
td.w { min-width: 11rem; }
tbody tr:last-child td { border-bottom: 0; }
th { background: var(--card); font-weight: 600; vertical-align: bottom; overflow-wrap: normal; }
.n { text-align: right; }
td.n { white-space: nowrap; }
.runs td { text-align: right; white-space: nowrap; }
.runs tr > :is(:nth-child(1), :nth-child(5), :nth-child(12)) { text-align: left; }
.runs thead th { text-align: right; }
.runs pre { white-space: pre-wrap; font-weight: normal; }
tr:target td, tbody:target th, .claim:target { background: var(--target); }
.badge { display: inline-block; padding: 0 0.55rem; border-radius: 1rem; font-size: 0.84rem; font-weight: 600;
  white-space: nowrap; background: var(--open-ground); color: var(--open); }
.holds { background: var(--good-ground); color: var(--good); }
.fails { background: var(--bad-ground); color: var(--bad); }
.claim { display: grid; grid-template-columns: 10.5rem 1fr; gap: 0.2rem 0.8rem; padding: 0.55rem 0;
  border-bottom: 1px solid var(--line); }
.claim p { margin: 0 0 0.15rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1rem; }
figure { margin: 0.6rem 0; min-width: 0; }
.charts figure { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 0.6rem; }
figcaption { font-weight: 600; font-size: 0.92rem; overflow-wrap: anywhere; }
.chart { width: 100%; min-height: 20rem; }
.chart svg { display: block; max-width: 100%; }
.still { background: #ffffff; border-radius: 6px; padding: 0.5rem; max-width: 100%; height: auto; }
details { margin: 0.4rem 0; }
summary { cursor: pointer; color: var(--link); }
pre { overflow-x: auto; font-size: 0.78rem; background: var(--card); padding: 0.6rem; border-radius: 6px;
  max-height: 24rem; }
.hint { color: var(--soft); font-size: 0.86rem; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); color: var(--soft); font-size: 0.84rem; }
#vg-tooltip-element { max-width: 20rem; }
@media (max-width: 40rem) { .claim { grid-template-columns: 1fr; } th, td { padding: 0.3rem 0.4rem; } }
@media print { body { max-width: none; } .hint { display: none; } .scroll { overflow: visible; } }
"""

NO_SCRIPT_STYLE = ".charts, .hint { display: none; }"

# Charts are drawn one after the other, so that the page can be read and scrolled meanwhile, and again when the ground
# changes. `ast`: expressions are interpreted, so that the page's policy can forbid making code from text.
SCRIPT = """
(() => {
  "use strict";
  const charts = JSON.parse(document.getElementById("charts").textContent);
  for (const [id, same] of Object.entries(charts)) if (typeof same === "string") charts[id] = charts[same];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = (chart) => {
    const ink = dark.matches ? "#c6ccd4" : "#3b424a";
    const line = dark.matches ? "#333c47" : "#dde2e7";
    const axis = {labelColor: ink, titleColor: ink, gridColor: line, domainColor: ink, tickColor: ink,
                  titleFontWeight: "normal", labelFontSize: 11, titleFontSize: 12, tickCount: 7};
    return {background: "transparent", font: "system-ui, sans-serif", axis, view: {stroke: null},
            legend: {labelColor: ink, titleColor: ink, labelFontSize: 11, titleFontSize: 11, symbolSize: 80},
            range: {category: dark.matches ? chart.dark : chart.light}};
  };
  let turn = 0;
  const draw = async () => {
    const mine = ++turn;
    document.documentElement.removeAttribute("data-drawn");
    for (const [id, chart] of Object.entries(charts)) {
      if (mine !== turn) return;
      const place = document.getElementById(id);
      try {
        await vegaEmbed(place, chart.spec, {actions: false, renderer: "svg", ast: true, config: config(chart),
                                            tooltip: {theme: dark.matches ? "dark" : "light"}});
      } catch (error) {
        place.textContent = "This chart could not be drawn; its numbers are in the tables below.";
        console.error(id, error);
      }
    }
    document.documentElement.setAttribute("data-drawn", String(Object.keys(charts).length));
  };
  dark.addEventListener("change", draw);
  draw();
})();
"""
